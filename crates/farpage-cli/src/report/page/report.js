"use strict";
// Draws the runs that are in the page, each in a column: a headline, charts with one cursor, tables. Columns have the
// same rows, so that the same chart of all runs stands side by side.
// Numbers come as farpage run --report writes them: bytes, pages, ns, s.

const PAGE = 4096;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function element(kind, className, text) {
	const made = document.createElement(kind);
	if (className) made.className = className;
	// Never as HTML: names of programs may have anything in them.
	if (text !== undefined) made.textContent = text;
	return made;
}

function bytes(value) {
	if (value == null) return "-";
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	let size = Math.abs(value), unit = 0;
	while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit++; }
	return (value < 0 ? "-" : "") + (unit ? size.toFixed(1) : size) + " " + units[unit];
}

function seconds(value) {
	if (value == null) return "-";
	if (value === 0) return "0";
	if (value < 1e-3) return (value * 1e6).toFixed(0) + " us";
	if (value < 1) return (value * 1e3).toFixed(1) + " ms";
	return value.toFixed(2) + " s";
}

// Steps of axes in bytes.
const BINARY = Array.from({ length: 50 }, (_, i) => 2 ** i);

const count = (value) => value == null ? "-" : Math.round(value).toLocaleString("en");
const percent = (value) => value == null ? "-" : value.toFixed(0) + " %";

// Growth of a counter, per second. Over at least a 200th of the run: a wait counts when it ends, and would be a spike.
function rate(times, values, scale = 1) {
	const least = times[times.length - 1] / 200;
	let from = 0;
	return times.map((time, i) => {
		while (from + 1 < i && time - times[from + 1] >= least) from++;
		const passed = time - times[from];
		return passed > 0 ? Math.max(0, values[i] - values[from]) * scale / passed : null;
	});
}

function share(times, part, whole) {
	return times.map((_, i) => {
		if (i === 0) return null;
		const all = whole[i] - whole[i - 1];
		return all > 0 ? Math.min(100, 100 * (part[i] - part[i - 1]) / all) : null;
	});
}

// What a chart is of one run: series of numbers, how they are written, and the most that there is.
function charts(samples) {
	const t = samples.t_s, plus = (...lists) => t.map((_, i) => lists.reduce((sum, list) => sum + list[i], 0));
	const pool = samples.pool_bytes, cached = samples.cached_bytes, all = samples.rss_anon_bytes;
	const list = [
		{ title: "Memory", write: bytes, series: [
			{ label: "program", values: all, color: "--c1", fill: true },
			{ label: "swap cache", values: plus(pool, cached), color: "--c3", fill: true },
			{ label: "compressed", values: pool, color: "--c2", fill: true },
			{ label: "budget", values: samples.budget_bytes, color: "--alarm", dash: [6, 4] },
			{ label: "swapped out", values: samples.swapped_bytes.map((v) => -v), color: "--c4", fill: true },
		] },
		{ title: "Faults per second", write: count, series: [
			{ label: "all", values: rate(t, samples.pgfault), color: "--c1" },
			{ label: "read a device", values: rate(t, samples.pgmajfault), color: "--c2" },
			{ label: "read a file", values: rate(t, samples.pgmajfault_file), color: "--alarm" },
		] },
		{ title: "Fault latency", write: seconds, logarithmic: true, series: [
			{ label: "median", values: samples.p50_ns.map((v) => v && v / 1e9), color: "--c1" },
			{ label: "99 %", values: samples.p99_ns.map((v) => v && v / 1e9), color: "--c3" },
			{ label: "99.9 %", values: samples.p999_ns.map((v) => v && v / 1e9), color: "--alarm" },
		] },
		{ title: "Swapped, bytes per second", write: bytes, series: [
			{ label: "in", values: rate(t, samples.pswpin, PAGE), color: "--c1" },
			{ label: "out", values: rate(t, samples.pswpout, PAGE), color: "--c2" },
			{ label: "from the pool to a file", values: rate(t, samples.pool_writeback, PAGE), color: "--c3" },
		] },
		{ title: "Readahead: hits", write: percent, series: [
			{ label: "of the pages read ahead", values: share(t, samples.swap_ra_hit, samples.swap_ra), color: "--c4" },
		] },
	];
	if (samples.fault_wait_ns && samples.fault_wait_ns.some((v) => v > 0)) {
		list.splice(1, 0, { title: "Waiting for memory, seconds per second, all threads", write: seconds, series: [
			{ label: "waited", values: rate(t, samples.fault_wait_ns, 1e-9), color: "--alarm", fill: true },
		] });
	}
	return list.filter((chart) => chart.series.some((series) => series.values.some((value) => value)));
}

// The same chart of all runs has the same scales.
function scales(runs) {
	const most = new Map();
	let end = 0;
	for (const run of runs) {
		end = Math.max(end, ...run.samples.t_s.slice(-1));
		for (const chart of charts(run.samples)) {
			const [low, high] = most.get(chart.title) || [0, 0];
			const values = chart.series.flatMap((series) => series.values).filter((value) => value != null);
			const least = chart.logarithmic ? values.filter((value) => value > 0) : values;
			const min = least.reduce((a, b) => Math.min(a, b), chart.logarithmic ? Infinity : low);
			const bottom = chart.logarithmic && low ? Math.min(low, min) : min;
			most.set(chart.title, [bottom, values.reduce((a, b) => Math.max(a, b), high)]);
		}
	}
	return { end: end || 1, most };
}

function draw(place, chart, times, limits, sync) {
	const [low, high] = limits.most.get(chart.title);
	const range = chart.logarithmic ? [low / 1.5, high * 1.5] : [low * 1.05, high * 1.05 || 1];
	const axis = (more) => ({
		stroke: color("--faint"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--grid"), width: 1 },
		font: "12px system-ui, sans-serif", ...more,
	});
	const write = (_, values) => values.map((value) => value == null ? "" : chart.write(value));
	// Without a cursor a legend has the largest value.
	const legend = (one) => (_, value, __, at) => {
		const sizes = (at == null ? one.values : [value]).filter((size) => size != null).map(Math.abs);
		return sizes.length ? chart.write(sizes.reduce((a, b) => Math.max(a, b))) : "-";
	};
	const when = (_, value) => value == null ? "whole run (largest values)" : value.toFixed(2) + " s";
	const series = chart.series.map((one) => ({
		label: one.label, stroke: color(one.color), width: 1.5, dash: one.dash, points: { show: false },
		fill: one.fill ? color(one.color) + "40" : undefined, value: legend(one),
	}));
	const options = {
		width: Math.max(280, place.clientWidth), height: 190, cursor: { sync: { key: sync }, y: false },
		scales: {
			x: { time: false, range: [0, limits.end] },
			y: chart.logarithmic ? { distr: 3, range } : { range },
		},
		axes: [
			axis({ values: (_, values) => values.map((value) => value + " s") }),
			axis({ size: 88, values: write, ...(chart.write === bytes ? { incrs: BINARY } : {}) }),
		],
		series: [{ label: "time", value: when }, ...series],
	};
	const plot = new uPlot(options, [times, ...chart.series.map((one) => one.values)], place);
	addEventListener("resize", () => plot.setSize({ width: Math.max(280, place.clientWidth), height: 190 }));
}

function table(rows, heads) {
	const made = element("table");
	if (heads) {
		const row = made.appendChild(element("tr"));
		heads.forEach((head, i) => row.appendChild(element("th", i ? "number" : "", head)));
	}
	for (const cells of rows) {
		const row = made.appendChild(element("tr"));
		cells.forEach((cell, i) => row.appendChild(element("td", i ? "number" : "", String(cell))));
	}
	return made;
}

function headline(run) {
	const last = (name) => run.samples[name] ? run.samples[name][run.samples[name].length - 1] || 0 : 0;
	const wall = run.wall_ns / 1e9, waited = last("fault_wait_ns") / 1e9;
	const how = run.signal == null ? "exit status " + run.exit_status : "killed by signal " + run.signal;
	const peak = Math.max(0, ...run.samples.rss_anon_bytes, run.rss_anon_peak_bytes || 0);
	const parts = [seconds(wall) + ", " + how, "peak " + bytes(peak) + ", budget " + bytes(run.ram_bytes)];
	const tree = run.tree || { waited_ns: 0, joined: 1, largest: [] };
	const share = Math.min(1, tree.waited_ns / run.wall_ns).toLocaleString("en", { style: "percent" });
	if (waited > 0) parts.push("threads waited " + seconds(waited) + " for memory in total, at least one for "
		+ share + " of the time");
	parts.push(bytes(last("pswpout") * PAGE) + " swapped out, " + bytes(last("pswpin") * PAGE) + " swapped in");
	const largest = tree.largest.slice(0, 3).map((process) => process.name + " " + bytes(process.peak_bytes));
	if (tree.joined > 1 && largest.length > 0) parts.push("largest processes: " + largest.join(", "));
	return parts.join("; ");
}

function troubles(run) {
	const names = { pages_lost: "pages were lost", write_errors: "writes failed", read_errors: "reads failed",
		swap_full: "times no device had room", over_budget_samples: "samples were above the budget" };
	return Object.entries(names).filter(([name]) => run[name] > 0).map(([name, what]) => count(run[name]) + " " + what);
}

// What a row of the page is: how it is drawn into a cell, of one run, unless that has nothing of it.
function rowsOf(run, limits) {
	const rows = new Map();
	const budget = run.ram_bytes == null ? "without a budget" : "in " + bytes(run.ram_bytes);
	rows.set("head", (cell) => {
		cell.appendChild(element("h1", "", run.program.join(" ") + ", " + budget));
		cell.appendChild(element("p", "headline", headline(run)));
		for (const trouble of troubles(run)) cell.appendChild(element("p", "alarm", trouble));
	});
	for (const chart of charts(run.samples)) {
		rows.set(chart.title, (cell) => {
			draw(cell.appendChild(element("div", "chart")), chart, run.samples.t_s, limits, "time");
		});
	}
	// Older pages have only what readahead did, without names.
	const mappings = run.mappings || run.readahead || [];
	if (mappings.length) {
		rows.set("Mappings of the first process", (cell) => {
			const cells = mappings.map((one) => [(one.name || "") + " at 0x" + one.start.toString(16), bytes(one.bytes),
				bytes(one.resident_peak_bytes), bytes(one.resident_bytes), count(one.pgmajfault),
				one.ra_hit_pct == null ? "-" : percent(one.ra_hit_pct)]);
			cell.appendChild(element("div", "wide")).appendChild(table(cells, ["mapping", "size", "in memory at the peak",
				"at the end", "major faults", "readahead hits"]));
		});
	}
	const details = (title, cells) => (cell) => {
		const made = cell.appendChild(element("details"));
		made.appendChild(element("summary", "", title));
		made.appendChild(table(cells));
	};
	rows.set("environment", details("Environment", Object.entries(run.environment || {})));
	const plain = Object.entries(run).filter(([, value]) => value === null || ["number", "string"].includes(typeof value));
	rows.set("counters", details("All counters of the first process",
		plain.map(([name, value]) => [name, value == null ? "-" : value])));
	return rows;
}

// Those with a line of their own above them.
const UNTITLED = ["head", "environment", "counters"];

const runs = JSON.parse(document.getElementById("runs").textContent);
const place = document.getElementById("page");
const limits = scales(runs);
document.title = "farpage: " + runs.map((run) => run.program[0]).join(", ");
const cells = runs.map((run) => rowsOf(run, limits));
// In the order of the run that has most; what only others have comes before the tables' end.
const longest = cells.reduce((a, b) => b.size > a.size ? b : a);
const others = cells.flatMap((rows) => [...rows.keys()]).filter((title) => !longest.has(title));
const titles = [...new Set([...longest.keys()].filter((title) => !UNTITLED.slice(1).includes(title))
	.concat(others, UNTITLED.slice(1)))];
// All columns are there before the first is drawn: they have their widths then.
const columns = runs.map(() => place.appendChild(element("section", "run")));
columns.forEach((column, i) => {
	column.style.setProperty("--rows", titles.length);
	for (const title of titles) {
		const cell = column.appendChild(element("div")), drawn = cells[i].get(title);
		if (!UNTITLED.includes(title)) cell.appendChild(element("h2", "", title));
		if (drawn) drawn(cell); else cell.appendChild(element("p", "none", "nothing in this run"));
	}
});
document.documentElement.dataset.drawn = document.querySelectorAll(".chart canvas").length;
// Colours are the theme's: another one needs other charts.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());

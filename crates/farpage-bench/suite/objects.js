// Objects, arrays, strings and a Map, while garbage is collected.
'use strict';
const count = 400_000;
const objects = [];
const byName = new Map();
for (let i = 0; i < count; i++) {
  const o = { id: i, name: 'object-' + ((i * 7919) % count), tags: [i % 7, i % 11, 'tag' + (i % 97)], next: null };
  if (i) objects[i - 1].next = o;
  objects.push(o);
  byName.set(o.name, o);
}
let total = 0;
for (let turn = 0; turn < 3; turn++) {
  for (let i = 0; i < count; i++) {
    const o = objects[(i * 104729) % count];
    o.tags = [o.id % 7, o.id % 11, 'tag' + ((o.id + turn) % 97)];
    total += o.tags[0];
  }
  for (let o = objects[0]; o; o = o.next) total += o.tags[1] + o.tags[2].length;
}
for (let i = 0; i < count; i += 3) total += byName.get('object-' + ((i * 7919) % count)).id;
const sorted = objects.slice().sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.id - b.id));
let hash = 0;
for (const o of sorted) hash = (Math.imul(hash, 31) + o.id) >>> 0;
console.log(total, byName.size, hash);

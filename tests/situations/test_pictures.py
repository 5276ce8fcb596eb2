"""Pictures for the documentation: what `farpage top` has on its screen is in the SVG, and pages have the pictures that
they name."""

import subprocess
import sys
import unittest
from xml.etree import ElementTree

import test_top
from situation import ROOT

sys.path.append(str(ROOT / "scripts"))
import svg  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


class Pictures(unittest.TestCase):
    def test_a_screen(self):
        screen = "\x1b[1m PID \x1b[4mRSS\x1b[0m\n\x1b[7m 7  \x1b[32m##\x1b[39m]\n\x1b[0;95m\u28ff\u2802\x1b[39m\u2502<&"
        root = ElementTree.fromstring(svg.terminal(screen, 20, "top"))
        texts = {text.text: text for text in root.iter(f"{SVG}text")}
        self.assertEqual(set(texts), {"top", "PID", "RSS", "7", "##", "]", "<&"})
        self.assertEqual(texts["RSS"].get("text-decoration"), "underline")
        self.assertEqual((texts["7"].get("fill"), texts["##"].get("fill")), (svg.GROUND, svg.GROUND))
        # The grounds of what is reversed, in its colours.
        grounds = [rect.get("fill") for rect in root.iter(f"{SVG}rect")]
        self.assertEqual(grounds, [svg.GROUND, svg.TEXT, svg.PALETTE[2], svg.TEXT])
        dots = [path for path in root.iter(f"{SVG}path") if path.get("stroke") == svg.PALETTE[13]]
        self.assertEqual([path.get("d").count("M") for path in dots], [9])

    def test_a_chart(self):
        self.assertEqual(svg.steps(9.7), [0, 2, 4, 6, 8])
        self.assertEqual(svg.steps(700, 2, (1,)), [0, 128, 256, 384, 512, 640])
        chart = svg.Chart("a < b", ("time", 10, [0, 10], str), ("memory", 8, [0, 8], str))
        chart.area("all", [(0, 0), (10, 0)], [(0, 8), (10, 4)], svg.BLUE)
        root = ElementTree.fromstring(chart.svg())
        self.assertIn("M84.0 74.0L806.0 194.0L806.0 314.0L84.0 314.0Z", "".join(path.get("d") for path in root.iter(f"{SVG}path")))
        self.assertIn("a < b", [text.text for text in root.iter(f"{SVG}text")])

    def test_pages_have_their_pictures(self):
        done = subprocess.run([ROOT / "scripts" / "links.py"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Top(test_top.Top):
    def test_its_screen(self):
        process = self.program()
        self.start()
        self.until("the list", f" {process.pid} ", test_top.KEYS)
        root = ElementTree.fromstring(svg.terminal(self.screen("-e"), 80, "farpage top"))
        words = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
        for part in ["swapped", "FAULT/s", "Enter details", str(process.pid)]:
            self.assertIn(part, words)


# Those of the other file are run there.
for name in [name for name in dir(test_top.Top) if name.startswith("test_")]:
    setattr(Top, name, None)


if __name__ == "__main__":
    unittest.main()

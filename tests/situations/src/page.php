<?php
// Fills memory, and says what is in it. `n`: with what.
$n = (int) $_GET['n'];
$texts = [];
for ($i = 0; $i < 50000; $i++) $texts[] = "$n " . str_repeat(chr(97 + ($i + $n) % 26), 64);
$sum = 0;
foreach ($texts as $text) $sum = ($sum * 31 + ord($text[strlen($text) - 1])) % 1000003;
echo "$n $sum ", count($texts), "\n";

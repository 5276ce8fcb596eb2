# A hash of strings: filled, asked at random, changed, sorted by its keys.
use strict;
use warnings;
use integer;

my $n = 200_000;
my $x = 12345;
my %hash;

# Each number gives another key.
sub key { return sprintf("key-%x", $_[0] * 2654435761 % 4294967296) }

$hash{ key($_) } = "value $_ of " . $_ * 7919 % 977 . ", " . "and more " x ($_ % 64) for 1 .. $n;

my $found = 0;
for (1 .. $n) {
    $x = ($x * 1103515245 + 12345) % 2147483648;
    $found++ if exists $hash{ key($x / 64 % (2 * $n)) };
}

my ($sum, $turn) = (0, 0);
for my $key (sort keys %hash) {
    $sum = ($sum * 31 + length($hash{$key}) + ord(substr($key, 4))) % 1000000007;
    $hash{$key} .= "!" if $turn++ % 8 == 0;
}
print scalar(keys %hash), " $found $sum\n";

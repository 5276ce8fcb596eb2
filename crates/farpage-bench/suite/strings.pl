# A hash of strings: filled, asked at random, changed, sorted by its keys.
use strict;
use warnings;
use integer;

my $n = 500_000;
my $x = 12345;
my %hash;

sub random {
    $x = ($x * 1103515245 + 12345) % 2147483648;
    return $x;
}

$hash{ "key-" . random() } = "value $_ of " . $x % 977 for 1 .. $n;

my $found = 0;
for (1 .. $n) {
    $x = ($x * 1103515245 + 12345) % 2147483648 if $_ % 3 == 0;
    $found++ if exists $hash{ "key-" . random() };
}

my ($sum, $turn) = (0, 0);
for my $key (sort keys %hash) {
    $sum = ($sum * 31 + length($hash{$key}) + ord(substr($key, 4))) % 1000000007;
    $hash{$key} .= "!" if $turn++ % 8 == 0;
}
print scalar(keys %hash), " $found $sum\n";

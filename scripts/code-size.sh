#!/usr/bin/env bash
# code-size.sh [COMMIT]: how large the tree is, room by room, and how long its files and functions
# are.
# Without a commit it measures the files that git knows, as they are in the working tree.
#
# A line counts if it is in a .rs file. Tests are what is compiled for tests, fuzzing or benchmarks
# only; the laboratory is what `vmlan bench`, `demo` and `probe` do; everything else is product. A
# function reaches from `fn` to the brace that closes it.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD
if [ $# -gt 0 ]; then
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  git archive "$1" -- . ':!fuzz/corpus' | tar -x -C "$tree"
  list() { (cd "$tree" && find . -type f | sed 's|^\./||' | sort); }
else
  list() { git ls-files | while read -r file; do [ ! -f "$file" ] || echo "$file"; done; }
fi

list | TREE=$tree perl -e '
use strict; use warnings;
my (%lines, %rooms, @files, @functions, %traits, $rust, $unsafe, $long_rust, $long_text, %longest);
sub kind {
  my $path = shift;
  return "test" if $path =~ m{(^|/)(tests|benches|fuzz)/|(^|/)tests\.rs$|/fuzz\.rs$};
  return "lab" if $path =~ m{^(lab|bench)/|/examples/};
  return "lab" if $path =~ m{^control/daemon/src/(bench|probe|demo|lab)(/|\.rs)};
  return "product";
}
sub room {
  my @part = split m{/}, shift;
  return $part[0] if @part < 3 || $part[0] =~ /^(bench|tests|fuzz|vmlan)$/;
  my ($last) = $part[3] ? $part[3] =~ /^(\w+)/ : ();
  my $crate = "$part[0]/$part[1]";
  # Chips, protocols and tools are rooms of their own.
  my $house = $crate =~ m{^(data/nic|control/attach|guest/(driver|tools))$};
  return "$crate/$last" if $house && $part[2] eq "src" && @part > 4;
  return $crate if $crate ne "lab/src";
  my ($folder) = $part[2] =~ /^(\w+)/;
  return @part > 3 || -d "$ENV{TREE}/lab/src/$folder" ? "lab/$folder" : "lab";
}
sub spread {
  my ($what, @all) = (shift, sort { $a->[0] <=> $b->[0] } @_);
  return unless @all;
  printf "%-12s %6d, median %d, 90th percentile %d, longest %d (%s)\n", $what, scalar @all,
    $all[$#all / 2][0], $all[$#all * 0.9][0], $all[-1][0], $all[-1][1];
}
my $public = qr/(?:pub(?:\([^)]*\))? )?/;
my $a_trait = qr/^(\s*)$public(?:unsafe )?trait (\w+)/;
my $a_function =
  qr/^(\s*)$public(?:const )?(?:async )?(?:unsafe )?(?:extern "C" )?fn (\w+)/;
while (my $path = <STDIN>) {
  chomp $path;
  next unless $path =~ /\.(rs|md)$/;
  open my $file, "<:utf8", "$ENV{TREE}/$path" or next;
  my @text = <$file>;
  chomp @text;
  my $long = grep { length > 100 } @text;
  if ($path =~ /\.md$/) { $long_text += $long; next; }
  $long_rust += $long;
  $rust += @text;
  my ($kind, $room) = (kind($path), room($path));
  push @files, [scalar @text, $path];
  my ($in_tests, %open, $trait, $from) = (0);
  for my $n (0 .. $#text) {
    my $line = $text[$n];
    $in_tests = 1 if $line =~ /^#\[cfg\((all\()?test\b/
      && ($text[$n + 1] // "") =~ /^${public}mod \w+ \{/;
    my $of = $in_tests ? "test" : $kind;
    $lines{$of}++;
    $rooms{$room}{$of}++;
    $in_tests = 0 if $in_tests && $line eq "}";
    next if $line =~ m{^\s*//};
    $unsafe += () = $line =~ /\bunsafe \{/g;
    if ($line =~ $a_trait) { ($trait, $from) = ($2, length $1); }
    if (defined $trait && $line =~ /^(\s*)\}/ && length $1 == $from) { undef $trait; }
    if ($line =~ $a_function) {
      $traits{"$trait ($path)"}++ if defined $trait && length $1 == $from + 4;
      $open{length $1} = [$n, $2];
      next if $line !~ /\}\s*$/ && $line !~ /;\s*$/;
    }
    if ($line =~ /^(\s*).*;\s*$/ && $open{length $1} && $open{length $1}[0] == $n) {
      delete $open{length $1};
    }
    if ($line =~ /^(\s*)(?:|.*\bfn .*)\}\s*$/ && $open{length $1}) {
      my $begun = delete $open{length $1};
      push @functions, [$n - $begun->[0] + 1, "$begun->[1] in $path"];
    }
    delete $open{length $1} if $line =~ /^(\s*)\)(?: -> .*)?;\s*$/;
  }
}
printf "lines        product %d, laboratory %d, tests %d, together %d\n",
  map({ $lines{$_} // 0 } qw(product lab test)), $rust;
printf "%-28s %8s %10s %7s\n", "room", "product", "laboratory", "tests";
printf "%-28s %8d %10d %7d\n", $_, map { $_ // 0 } @{$rooms{$_}}{qw(product lab test)}
  for sort keys %rooms;
spread("files", @files);
spread("functions", @functions);
printf "unsafe       %d blocks, %.2f for 1,000 lines of Rust\n", $unsafe, $unsafe * 1000 / $rust;
my @traits = sort { $traits{$b} <=> $traits{$a} || $a cmp $b } keys %traits;
print "traits       ", join(", ", map { "$_ $traits{$_}" } grep { defined } @traits[0 .. 5]), "\n";
printf "over 100 columns: %d lines of Rust, %d of Markdown\n", $long_rust, $long_text // 0;
'

# Without the laboratory, as packages are built. `--offline`: what was fetched already will do.
depth="cargo tree -p vmlan -e normal --prefix depth --no-dedupe --no-default-features"
if listed=$(cd "$tree" && { $depth --offline 2>/dev/null || $depth 2>/dev/null; }); then
  printf '%s\n' "$listed" | perl -e '
    my (@ours, %direct, %all);
    while (<STDIN>) {
      my ($depth, $name) = /^(\d+)(\S+)/ or next;
      $ours[$depth] = m{ \(/};
      next if $ours[$depth];
      $all{$name} = 1;
      $direct{$name} = 1 if $ours[$depth - 1];
    }
    printf "the packaged program: %d crates of others, %d of them named by ours: %s\n",
      scalar keys %all, scalar keys %direct, join(" ", sort keys %direct);'
fi

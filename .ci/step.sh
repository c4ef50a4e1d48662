# Run a command under a headline, and say how long it took.
step() {
  local begun=$SECONDS
  null_is_a_device
  printf '\n== %s\n' "$*"
  "$@" || return
  printf '== took %d s\n' $((SECONDS - begun))
}

# Cargo asks the compiler about its target with /dev/null as the crate. A program that runs as root can have put a file in its
# place (`rustc --emit=metadata -o /dev/null` does), and then what other programs threw away is compiled.
null_is_a_device() {
  [ -c /dev/null ] && return
  echo "/dev/null is no device; making it one again"
  mknod -m 666 "/dev/null.$BASHPID" c 1 3 && mv -f "/dev/null.$BASHPID" /dev/null
}

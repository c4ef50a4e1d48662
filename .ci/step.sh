# Run a command under a headline, and say how long it took.
step() {
  local begun=$SECONDS
  printf '\n== %s\n' "$*"
  "$@" || return
  printf '== took %d s\n' $((SECONDS - begun))
}

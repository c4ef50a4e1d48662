#!/usr/bin/env bash
# Writes the tables and figures of the documents, each from one command, between its marks.
#
#   scripts/reproduce.sh --list             every name: its document, what it is, its cost in core-hours
#   scripts/reproduce.sh NAME…              run what it takes and write it into its document
#   scripts/reproduce.sh --quick NAME…|all  a small version, printed: a few steps of one seed; no document is touched
#   scripts/reproduce.sh --check            what CI runs: every table and figure has a command; those of seconds are made again
#
# Runs stay in runs/reproduce/ (--runs DIR). One that is there already is not repeated, so that a table can be written anew
# without training; one that was interrupted goes on. Runs of different builds in one table are refused, but for tables of
# which each row names its own: their rows are kept in docs/results/, and --kept trains only those that are not there.
# --so-far trains none: rows of runs that were interrupted have the step that they got to.
# TAPEZOO=FILE takes a program that is built already; --jobs N as in `tapezoo train`.
set -euo pipefail
case ${1---help} in -h | --help)
  sed -n '2,$s/^# \{0,1\}//p' "$0" | sed '/^set /,$d'
  exit
  ;;
esac
cd "$(dirname "$0")/.."
case " $* " in *" --list "*) ;; *) [ -n "${TAPEZOO-}" ] || cargo build --release --quiet --bin tapezoo ;; esac
PYTHONDONTWRITEBYTECODE=1 exec python3 scripts/reproduce.py "$@"

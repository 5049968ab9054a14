#!/usr/bin/env bash
# Removes what install.sh installed. Settings, policies, models and the log stay, unless --purge is given.
#
#   uninstall.sh           remove the program
#   uninstall.sh --purge   remove the program and all that it has kept, models among it
#   uninstall.sh --stop    stop it if it runs, and remove nothing
set -eu
unset CDPATH # with it, cd prints where it went

program=$(cd -- "$(dirname -- "$0")" && pwd)
[ -f "$program/installed-files" ] || {
    echo "uninstall.sh: run the one beside the installed program, not this one" >&2
    exit 2
}

# The app itself, not its workers: it ends them in an orderly way.
instances() {
    for entry in /proc/[0-9]*; do
        [ "$entry/exe" -ef "$program/lemon-tray" ] || continue
        case "$(tr '\0' ' ' 2>/dev/null <"$entry/cmdline")" in
            *" --engine-worker "*) ;;
            *) echo "${entry#/proc/}" ;;
        esac
    done
}

stop() {
    found=$(instances)
    [ -n "$found" ] || return 0
    echo "Stopping Lemon Tray"
    # shellcheck disable=SC2086  # one number each
    kill -TERM $found 2>/dev/null || true
    tries=0
    while [ -n "$(instances)" ]; do
        tries=$((tries + 1))
        [ "$tries" -le 60 ] || { echo "uninstall.sh: it does not end; end it and try again" >&2; exit 1; }
        sleep 0.25
    done
}

case "${1:-}" in
    "" | --purge) ;;
    --stop) stop; exit 0 ;;
    *) echo "Usage: uninstall.sh [--purge | --stop]" >&2; exit 2 ;;
esac
[ -n "${HOME:-}" ] || { echo "uninstall.sh: HOME is not set, so it is unknown what is yours" >&2; exit 2; }
# The place that a variable names, if that is a full path; else the usual one.
place() {
    case "$1" in
        /*) printf '%s' "$1" ;;
        *) printf '%s' "$HOME/$2" ;;
    esac
}
config=$(place "${XDG_CONFIG_HOME:-}" .config)
stop

while IFS= read -r file; do
    rm -f "$file"
done <"$program/installed-files"
# Starting at login would start what is not there any more.
rm -f "$config/autostart/lemon-tray.desktop"
if [ "${1:-}" = --purge ]; then
    rm -rf "$config/lemon-tray" "$(place "${XDG_DATA_HOME:-}" .local/share)/lemon-tray" \
        "$(place "${XDG_STATE_HOME:-}" .local/state)/lemon-tray" \
        "$(place "${XDG_CACHE_HOME:-}" .cache)/lemon-tray"
    echo "Lemon Tray and all that it has kept are removed."
else
    echo "Lemon Tray is removed. Your settings and models are still there; --purge would have removed them."
fi
# Last: this script is in it.
rm -rf "$program"

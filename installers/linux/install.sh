#!/bin/sh
# Installs Lemon Tray @VERSION@ for this user, in place of an older one. Nothing outside your home is written.
#
#   ./install.sh              below ~/.local, or $XDG_DATA_HOME for the program and its menu entry
#   ./install.sh --prefix DIR below DIR instead
set -eu
unset CDPATH # with it, cd prints where it went

here=$(cd -- "$(dirname -- "$0")" && pwd)
if [ "${1:-}" = --prefix ] && [ $# -le 2 ]; then
    [ -n "${2:-}" ] || { echo "install.sh: --prefix needs a folder" >&2; exit 2; }
    mkdir -p -- "$2"
    prefix=$(cd -- "$2" && pwd)
    bin="$prefix/bin"
    data="$prefix/share"
elif [ $# -gt 0 ]; then
    echo "Usage: ./install.sh [--prefix DIR]" >&2
    exit 2
else
    [ -n "${HOME:-}" ] || { echo "install.sh: HOME is not set; name a folder with --prefix" >&2; exit 2; }
    bin="$HOME/.local/bin"
    case "${XDG_DATA_HOME:-}" in
        /*) data=$XDG_DATA_HOME ;;
        *) data="$HOME/.local/share" ;; # what is no full path does not count
    esac
fi
program="$data/lemon-tray-app"

"$here/lemon-tray/lemon-tray" --version >/dev/null || {
    echo "install.sh: the program does not run on this system; nothing was installed" >&2
    exit 1
}
# An installation that broke off between its two moves: the older program is still whole.
[ -e "$program" ] || [ ! -e "$program.old" ] || mv "$program.old" "$program"
[ ! -x "$program/uninstall.sh" ] || "$program/uninstall.sh" --stop

mkdir -p "$data" "$bin"
rm -rf "$program.new" "$program.old"
trap 'rm -rf "$program.new"' EXIT
cp -a "$here/lemon-tray" "$program.new"
cp "$here/uninstall.sh" "$program.new/uninstall.sh"
# The old program stays whole until the new one is there.
[ ! -e "$program" ] || mv "$program" "$program.old"
mv "$program.new" "$program"
rm -rf "$program.old"

ln -sfn "$program/lemon-tray" "$bin/lemon-tray"
applications="$data/applications"
icons="$data/icons/hicolor/scalable/apps"
man="$data/man/man1"
mkdir -p "$applications" "$icons" "$man"
# A path in a desktop entry is quoted: it may hold spaces. Signs that mean something there are escaped, and
# then those that sed would take for its own.
quoted=$(printf '%s' "$program/lemon-tray" |
    sed -e 's/\\/\\\\\\\\/g' -e 's/%/%%/g' -e 's/["`$]/\\\\&/g' | sed 's/[\\&|]/\\&/g')
plain=$(printf '%s' "$program/lemon-tray" | sed 's/\\/\\\\/g' | sed 's/[\\&|]/\\&/g')
sed -e "s|^Exec=@BIN@|Exec=\"$quoted\"|" -e "s|^TryExec=@BIN@|TryExec=$plain|" \
    "$here/share/applications/lemon-tray.desktop" >"$applications/lemon-tray.desktop"
cp "$here/share/icons/hicolor/scalable/apps/lemon-tray.svg" "$icons/"
cp "$here/share/man/man1/lemon-tray.1.gz" "$man/"
{
    echo "$bin/lemon-tray"
    echo "$applications/lemon-tray.desktop"
    echo "$icons/lemon-tray.svg"
    echo "$man/lemon-tray.1.gz"
} >"$program/installed-files"
if command -v update-desktop-database >/dev/null; then
    update-desktop-database -q "$applications" || true
fi

echo "Lemon Tray @VERSION@ is installed. Start it from the menu, or with: $bin/lemon-tray"
case ":$PATH:" in
    *":$bin:"*) ;;
    *) echo "$bin is not in your PATH: add it to type just lemon-tray." ;;
esac
echo "To remove it: $program/uninstall.sh"

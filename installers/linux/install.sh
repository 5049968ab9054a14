#!/bin/sh
# Installs Lemon Tray @VERSION@ for this user, in place of an older one. Nothing outside your home is written.
#
#   ./install.sh              below ~/.local, or $XDG_DATA_HOME for the program and its menu entry
#   ./install.sh --prefix DIR below DIR instead
set -eu

here=$(cd "$(dirname "$0")" && pwd)
bin="$HOME/.local/bin"
data="${XDG_DATA_HOME:-$HOME/.local/share}"
if [ "${1:-}" = --prefix ]; then
    [ -n "${2:-}" ] || { echo "install.sh: --prefix needs a folder" >&2; exit 2; }
    mkdir -p "$2"
    prefix=$(cd "$2" && pwd)
    bin="$prefix/bin"
    data="$prefix/share"
elif [ $# -gt 0 ]; then
    echo "Usage: ./install.sh [--prefix DIR]" >&2
    exit 2
fi
program="$data/lemon-tray-app"

"$here/lemon-tray/lemon-tray" --version >/dev/null || {
    echo "install.sh: the program does not run on this system; nothing was installed" >&2
    exit 1
}
[ ! -x "$program/uninstall.sh" ] || "$program/uninstall.sh" --stop

mkdir -p "$data" "$bin"
rm -rf "$program.new" "$program.old"
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
# A path in a desktop entry is quoted: it may hold spaces.
escaped=$(printf '%s' "$program/lemon-tray" | sed 's/[\\&|]/\\&/g')
sed -e "s|^Exec=@BIN@|Exec=\"$escaped\"|" -e "s|^TryExec=@BIN@|TryExec=$escaped|" \
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

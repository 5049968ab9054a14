#!/usr/bin/env bash
# From the bundle that PyInstaller made to a disk image to drag it out of.
#
#   build_dmg.sh "Lemon Tray.app" OUT.dmg
#
# Signing and notarization happen where these are set, and are left out, with a line, where they are not:
#
#   LEMON_TRAY_SIGN_IDENTITY   a "Developer ID Application" certificate in the keychain
#   LEMON_TRAY_NOTARY_PROFILE  a profile that `xcrun notarytool store-credentials` has made
set -euo pipefail

[ $# -eq 2 ] || { echo "Usage: build_dmg.sh BUNDLE OUT" >&2; exit 2; }
bundle=${1%/} # with the slash, cp would copy what is in it
out=$2
here=$(cd "$(dirname "$0")" && pwd)
identity=${LEMON_TRAY_SIGN_IDENTITY:-}
profile=${LEMON_TRAY_NOTARY_PROFILE:-}

[ -d "$bundle/Contents/MacOS" ] || { echo "build_dmg.sh: $bundle is no bundle" >&2; exit 2; }
if [ -n "$profile" ] && [ -z "$identity" ]; then
    echo "build_dmg.sh: what is not signed cannot be notarized: set LEMON_TRAY_SIGN_IDENTITY too" >&2
    exit 2
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp -R "$bundle" "$stage/"
app="$stage/$(basename "$bundle")"
ln -s /Applications "$stage/Applications"

if [ -n "$identity" ]; then
    # From the inside out: the seal of a bundle covers what is in it.
    while IFS= read -r -d '' library; do
        codesign --force --timestamp --options runtime --sign "$identity" "$library"
    done < <(find "$app/Contents" -type f \( -name '*.dylib' -o -name '*.so' \) -print0)
    # Qt's libraries have no such name: each is a framework, which is signed as a whole, after what is in it.
    while IFS= read -r -d '' framework; do
        codesign --force --timestamp --options runtime --sign "$identity" "$framework"
    done < <(find "$app/Contents" -depth -type d -name '*.framework' -print0)
    codesign --force --timestamp --options runtime --entitlements "$here/entitlements.plist" \
        --sign "$identity" "$app"
    codesign --verify --strict --deep "$app"
else
    echo "build_dmg.sh: not signed, as LEMON_TRAY_SIGN_IDENTITY is not set; users must allow it to open"
    # Apple's processors start nothing without at least a signature of its own.
    codesign --force --deep --sign - "$app"
fi

rm -f "$out"
hdiutil create -volname "Lemon Tray" -srcfolder "$stage" -fs HFS+ -format UDZO -ov "$out"

if [ -n "$identity" ]; then
    codesign --force --timestamp --sign "$identity" "$out"
fi
if [ -n "$profile" ]; then
    xcrun notarytool submit "$out" --keychain-profile "$profile" --wait
    xcrun stapler staple "$out"
else
    echo "build_dmg.sh: not notarized, as LEMON_TRAY_NOTARY_PROFILE is not set"
fi

# Fetches and unpacks the distribution's source of the package that a program comes from, to ./source: source_package.sh PROGRAM.
# The installed version, or the newest where that is gone. The system's own lists of packages stay as they are.
set -eu
path=$(readlink -f "$(command -v "$1")")
owner=$( (dpkg -S "$path" || dpkg -S "${path#/usr}") 2>/dev/null | head -1 | cut -d: -f1)
name=$(dpkg-query -W -f '${source:Package}' "$owner")
version=$(dpkg-query -W -f '${source:Version}' "$owner")
rm -rf parts lists unpacked source
mkdir -p parts lists/partial unpacked
for file in /etc/apt/sources.list.d/*.sources; do
    if [ -f "$file" ]; then sed 's/^Types:.*/Types: deb-src/' "$file" >"parts/$(basename "$file")"; fi
done
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    if [ -f "$file" ]; then sed -n 's/^deb /deb-src /p' "$file" >"parts/$(basename "$file" .list).list"; fi
done
base=$PWD
apt() {
    apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$base/parts" -o "Dir::State::lists=$base/lists" \
        -o APT::Sandbox::User=root "$@" >/dev/null
}
# Some of the places may have no sources: what matters is whether the next step finds this one.
apt update 2>/dev/null || true
cd unpacked
apt source --download-only "$name=$version" 2>/dev/null || apt source --download-only "$name"
dpkg-source --no-check -x ./*.dsc whole >/dev/null
mv whole ../source
cd ..
rm -rf parts lists unpacked

#!/bin/sh
# Puts into a folder what Flink needs for weir's jobs: the connector of Kafka with its client, the
# format Avro, and weir's functions. It needs Maven and a JDK (apt install maven
# default-jdk-headless).
#
#   packaging/flink/libraries.sh FOLDER [VERSION OF FLINK]
set -eu
folder=${1:?usage: libraries.sh FOLDER [VERSION OF FLINK]}
flink=${2:-2.3.0}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"
copy() {
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -Dflink="$flink" \
        -DincludeScope="$1" -DoutputDirectory="$2" \
        -DexcludeArtifactIds=flink-core,flink-core-api,flink-annotations,slf4j-api
}
copy runtime "$work/runtime"
mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -Dflink="$flink" \
    -DoutputDirectory="$work/all"
# Flink runs with Java 11 and later versions, perhaps with an older one than the compiler's.
javac --release 11 -cp "$work/all/*" -d "$work/classes" "$here"/weir/flink/*.java
jar --create --file "$work/runtime/weir-flink.jar" -C "$work/classes" .
cp "$work"/runtime/*.jar "$folder"
ls "$folder"

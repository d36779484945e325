# Installs into a folder and packs it: sorted, owned by root, one time for all, so that the same build gives the
# same bytes (SOURCE_DATE_EPOCH sets the time).
set(name "onepath-${VERSION}-linux-${MACHINE}")
set(stage "${BUILD}/tarball/${name}")
file(REMOVE_RECURSE "${BUILD}/tarball")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --component program --strip --prefix "${stage}"
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(time "$ENV{SOURCE_DATE_EPOCH}")
if(time STREQUAL "")
    set(time 0)
endif()
execute_process(COMMAND tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@${time} --format=ustar
                        -C "${BUILD}/tarball" -cf - "${name}"
                COMMAND gzip -n9 OUTPUT_FILE "${BUILD}/${name}.tar.gz" COMMAND_ERROR_IS_FATAL ANY)
file(SHA256 "${BUILD}/${name}.tar.gz" digest)
file(WRITE "${BUILD}/${name}.tar.gz.sha256" "${digest}  ${name}.tar.gz\n")
file(REMOVE_RECURSE "${BUILD}/tarball")
message(STATUS "${BUILD}/${name}.tar.gz")

# For 64-bit ARM Linux (armv8), with Debian's g++-aarch64-linux-gnu:
#   cmake -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -S . -B build
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# Debian's own ARM packages (libutf8proc-dev:arm64, ...), where they are installed.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)

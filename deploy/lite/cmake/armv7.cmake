# For 32-bit ARM Linux with a floating-point unit (armv7), with Debian's g++-arm-linux-gnueabihf:
#   cmake -DCMAKE_TOOLCHAIN_FILE=cmake/armv7.cmake -S . -B build
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR armv7)
set(CMAKE_C_COMPILER arm-linux-gnueabihf-gcc)
set(CMAKE_CXX_COMPILER arm-linux-gnueabihf-g++)
set(CMAKE_CXX_FLAGS_INIT "-march=armv7-a+fp")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# Debian's own ARM packages (libutf8proc-dev:armhf, ...), where they are installed.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/arm-linux-gnueabihf/pkgconfig:/usr/share/pkgconfig)

# The three libraries: those of the system if it has them, else downloaded at these commits.
#   utf8proc       Unicode
#   nlohmann_json  JSON, a header
#   cpp-httplib    HTTP, a header or a library
# -DFLEETBERT_DOWNLOAD=ON always downloads: the simple way where one cross-compiles.
include(FetchContent)
find_package(PkgConfig QUIET)
option(FLEETBERT_DOWNLOAD "Download the libraries even where the system has them" OFF)

function(fleetbert_library target module package repository commit)
  if(PkgConfig_FOUND AND NOT FLEETBERT_DOWNLOAD)
    pkg_check_modules(${module} QUIET IMPORTED_TARGET ${package})
    if(${module}_FOUND)
      message(STATUS "${package} ${${module}_VERSION} of this system")
      add_library(${target} INTERFACE)
      target_link_libraries(${target} INTERFACE PkgConfig::${module})
      return()
    endif()
  endif()
  message(STATUS "${package}: downloading ${commit}")
  FetchContent_Declare(${module} GIT_REPOSITORY ${repository} GIT_TAG ${commit})
  FetchContent_GetProperties(${module})
  if(NOT ${module}_POPULATED)
    FetchContent_Populate(${module})
  endif()
  string(TOLOWER ${module} name)
  set(source ${${name}_SOURCE_DIR})
  if(target STREQUAL fleetbert_utf8proc)
    add_library(${target} STATIC ${source}/utf8proc.c)
    target_compile_definitions(${target} PUBLIC UTF8PROC_STATIC)
    target_include_directories(${target} SYSTEM PUBLIC ${source})
  elseif(target STREQUAL fleetbert_json)
    add_library(${target} INTERFACE)
    target_include_directories(${target} SYSTEM INTERFACE ${source}/single_include)
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} SYSTEM INTERFACE ${source})
  endif()
endfunction()

fleetbert_library(fleetbert_utf8proc UTF8PROC libutf8proc
  https://github.com/JuliaStrings/utf8proc.git 1cb28a66ca79a0845e99433fd1056257456cef8b)  # 2.8.0
fleetbert_library(fleetbert_json JSON nlohmann_json
  https://github.com/nlohmann/json.git 9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03)  # 3.11.3
fleetbert_library(fleetbert_http HTTP cpp-httplib
  https://github.com/yhirose/cpp-httplib.git b8fe69e4e892ec394ca8de27ab2fe219008690b6)  # 0.53.1

# Two libraries: those of the system if it has them, else downloaded at these commits.
#   utf8proc       Unicode
#   nlohmann_json  JSON, a header
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
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} SYSTEM INTERFACE ${source}/single_include)
  endif()
endfunction()

fleetbert_library(fleetbert_utf8proc UTF8PROC libutf8proc
  https://github.com/JuliaStrings/utf8proc.git 1cb28a66ca79a0845e99433fd1056257456cef8b)  # 2.8.0
fleetbert_library(fleetbert_json JSON nlohmann_json
  https://github.com/nlohmann/json.git 9cca280a4d0ccf0c08f47a99aa71d1b0e52f8d03)  # 3.11.3

# Of Boost the headers of Asio and Beast, HTTP: those of the system, which serve every processor.
include(CheckIncludeFileCXX)
set(BOOST_DIR "" CACHE PATH "Folder of a release of Boost, where the system's is not for this compiler")
add_library(fleetbert_http INTERFACE)
if(BOOST_DIR)
  target_include_directories(fleetbert_http SYSTEM INTERFACE ${BOOST_DIR})
else()
  check_include_file_cxx(boost/beast/core.hpp FLEETBERT_HAS_BOOST)
  if(NOT FLEETBERT_HAS_BOOST)
    message(FATAL_ERROR "Boost's headers are missing: install libboost-dev, or name the folder of an "
      "unpacked release of Boost, 1.74 or later, in BOOST_DIR")
  endif()
endif()

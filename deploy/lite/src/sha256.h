// SHA-256 (FIPS 180-4), for files of bundles.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace fleetbert {

// In hexadecimal.
std::string sha256(std::string_view data);

// Of a file's content. Throws UserError where it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace fleetbert

#include "json_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "error.h"

namespace fleetbert {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 100;

}  // namespace

std::string read_file(const std::filesystem::path& path, uint64_t limit) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > limit) {
    throw UserError(path.string() + " has " + std::to_string(size) + " bytes, which is too many: "
                    "copy the bundle again");
  }
  errno = error ? error.value() : 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (error || !file) {
    throw UserError(path.string() + " cannot be read: " + std::strerror(errno ? errno : EIO));
  }
  return text;
}

json parse_json(const std::string& text, const std::filesystem::path& path) {
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) {
      throw UserError(path.string() + " is nested too deep: copy the bundle again");
    }
    return true;
  };
  try {
    return json::parse(text, check_depth);
  } catch (const json::exception&) {
    throw UserError(path.string() + " is not JSON: copy the bundle again");
  }
}

Reader Reader::at(const std::string& key) const {
  if (!value_.is_object()) fail("has to be an object");
  const auto found = value_.find(key);
  if (found == value_.end()) fail("has no " + key);
  return Reader(*found, where_.empty() ? key : where_ + "." + key, path_);
}

std::vector<Reader> Reader::list() const {
  if (!value_.is_array()) fail("has to be a list");
  std::vector<Reader> found;
  for (size_t i = 0; i < value_.size(); ++i) {
    found.emplace_back(value_[i], where_ + "." + std::to_string(i), path_);
  }
  return found;
}

std::vector<std::string> Reader::keys() const {
  if (!value_.is_object()) fail("has to be an object");
  std::vector<std::string> found;
  for (const auto& [key, value] : value_.items()) found.push_back(key);
  return found;
}

std::string Reader::text() const {
  if (!value_.is_string()) fail("has to be a string");
  return value_.get<std::string>();
}

bool Reader::flag() const {
  if (!value_.is_boolean()) fail("has to be true or false");
  return value_.get<bool>();
}

uint64_t Reader::number() const {
  if (!value_.is_number_unsigned()) fail("has to be a whole number");
  return value_.get<uint64_t>();
}

double Reader::real() const {
  if (!value_.is_number()) fail("has to be a number");
  return value_.get<double>();
}

void Reader::fail(const std::string& what) const {
  throw UserError(path_.string() + ": " + (where_.empty() ? "the whole" : where_) + " " + what +
                  "; restore the file or export again");
}

}  // namespace fleetbert

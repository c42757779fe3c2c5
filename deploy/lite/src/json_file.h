// Files of a bundle, and the JSON in them, read so that what is wrong can be said.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fleetbert {

// A file's bytes. Throws UserError where it cannot be read or has more than `limit` bytes.
std::string read_file(const std::filesystem::path& path, uint64_t limit);

// The JSON in a text; `path` is for messages. Throws UserError.
nlohmann::json parse_json(const std::string& text, const std::filesystem::path& path);

// Reads fields, and says which one is wrong: every function throws UserError.
class Reader {
 public:
  // Keeps references to `value` and `path`.
  Reader(const nlohmann::json& value, std::string where, const std::filesystem::path& path)
      : value_(value), where_(std::move(where)), path_(path) {}

  Reader at(const std::string& key) const;
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  std::vector<Reader> list() const;
  std::vector<std::string> keys() const;
  std::string text() const;
  bool flag() const;
  uint64_t number() const;
  double real() const;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  const nlohmann::json& value_;
  std::string where_;
  const std::filesystem::path& path_;
};

}  // namespace fleetbert

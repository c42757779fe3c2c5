// The fields of a request of the Open Inference Protocol: lists, parameters, tensors in JSON or in the
// bytes after it. What is wrong is a Failure that names the field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "body.h"

namespace fleetbert {

const nlohmann::json& read_list(const nlohmann::json& message, const char* key);
const nlohmann::json& read_parameters(const nlohmann::json& message, const std::string& where);
bool read_flag(const nlohmann::json& value, const std::string& key, const std::string& where);
std::string read_name(const nlohmann::json& entry, const std::string& where);
size_t read_header_length(const std::string& text, size_t body);

// An input as it was sent: `raw` where its values are bytes after the JSON.
struct InputTensor {
  std::string name;
  const nlohmann::json* entry = nullptr;
  std::optional<std::string_view> raw;
};

// The bytes after the JSON, as tensors take them.
class RestOfBody {
 public:
  RestOfBody(std::string_view bytes, bool is_there) : bytes_(bytes), is_there_(is_there) {}

  std::string_view take(const nlohmann::json& size, const std::string& name);
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool is_there_;
};

std::vector<std::string> read_texts(const InputTensor& tensor, const Limits& limits);

// Rows of integers of 0 to limit - 1.
struct Integers {
  size_t rows = 0, columns = 0;
  std::vector<int64_t> values;
};

Integers read_integers(const InputTensor& tensor, const Limits& limits, size_t max_length,
                       int64_t limit, const std::string& meaning);

}  // namespace fleetbert

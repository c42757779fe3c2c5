// The JSON of requests over HTTP, and what is wrong with it.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fleetbert {

// A request that is not answered: the HTTP status, and one sentence.
struct Failure : std::runtime_error {
  Failure(int status_code, const std::string& message)
      : std::runtime_error(message), status(status_code) {}
  int status;
};

struct Limits {
  size_t max_texts = 64;
  size_t max_text_bytes = 1u << 16;
  double timeout_seconds = 30;  // of requests that name none
};

[[noreturn]] void refuse(const std::string& message, int status = 400);

// The object that a body is. Throws Failure.
nlohmann::json parse_body(const std::string& text);

// The member of an object; null where there is none.
const nlohmann::json& member(const nlohmann::json& object, const char* key);

// Throws Failure at the first that is too long or no text to answer.
void check_texts(const std::vector<std::string>& texts, const std::string& input,
                 const Limits& limits);

// Names of an object's members but the known ones, in ASCII: parameters that change nothing.
std::string names_of_others(const nlohmann::json& object, const std::vector<std::string>& known);

// A value for a message: short, whatever it is.
std::string show(const nlohmann::json& value);

std::string shortened(std::string text, size_t limit = 60);

// {"error": message}
std::string error_body(const std::string& message);

// A client's words for a message: short, whatever they are.
std::string in_quotes(std::string_view text);

}  // namespace fleetbert

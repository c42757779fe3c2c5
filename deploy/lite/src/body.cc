#include "body.h"

#include <algorithm>

#include "unicode.h"

namespace fleetbert {
namespace {

using nlohmann::json;

constexpr int kDeepest = 100;

}  // namespace

void refuse(const std::string& message, int status) {
  throw Failure(status, message);
}

json parse_body(const std::string& text) {
  const auto check_depth = [](int depth, json::parse_event_t, json&) {
    if (depth >= kDeepest) {
      refuse("the body is nested more than " + std::to_string(kDeepest) +
             " levels deep; a tensor of texts or ids needs five");
    }
    return true;
  };
  json message;
  try {
    message = json::parse(text, check_depth);
  } catch (const json::parse_error& error) {
    const size_t at = error.byte;
    const auto start = at > 40 ? at - 40 : 0;
    auto near = text.substr(std::min(start, text.size()), at + 8 - start);
    near.erase(std::remove_if(near.begin(), near.end(),
                              [](char c) { return static_cast<unsigned char>(c) - 32u >= 95u; }),
               near.end());
    refuse("the body is not JSON, at byte " + std::to_string(at) +
           (near.empty() ? "" : ", near '" + near + "'"));
  } catch (const json::out_of_range&) {
    refuse("the body holds a number that is larger than any 64-bit float");
  }
  if (!message.is_object()) refuse("the body is " + show(message) + "; it has to be a JSON object");
  return message;
}

const json& member(const json& object, const char* key) {
  static const json nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

void check_texts(const std::vector<std::string>& texts, const std::string& input,
                 const Limits& limits) {
  for (size_t number = 0; number < texts.size(); ++number) {
    if (texts[number].size() > limits.max_text_bytes) {
      refuse("text " + std::to_string(number) + " of input '" + input + "' has " +
                 std::to_string(texts[number].size()) + " bytes; this server takes at most " +
                 std::to_string(limits.max_text_bytes) + " in a text",
             413);
    }
  }
  for (size_t number = 0; number < texts.size(); ++number) {
    const auto fault = fault_of(texts[number]);
    if (!fault.empty()) {
      refuse("text " + std::to_string(number) + " of input '" + input + "' " + fault);
    }
  }
}

std::string names_of_others(const json& object, const std::vector<std::string>& known) {
  std::string names;
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    names += (names.empty() ? "" : ", ") + in_quotes(key);
  }
  std::replace_if(
      names.begin(), names.end(), [](unsigned char c) { return c > 126; }, '?');
  return names;
}

std::string show(const json& value) {
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  if (value.is_object()) return "an object of " + std::to_string(value.size());
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return shortened(value.dump());
}

std::string shortened(std::string text, size_t limit) {
  if (text.size() > limit) {
    text.resize(limit);
    while (!text.empty() && !is_utf8(text)) text.pop_back();
    text += "...";
  }
  return text;
}

std::string in_quotes(std::string_view text) {
  std::string safe;
  for (const auto c : shortened(std::string(text))) {
    safe += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  }
  return "'" + (is_utf8(safe) ? safe : std::string("?")) + "'";
}

std::string error_body(const std::string& message) {
  return json{{"error", message}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace fleetbert

#include "oip.h"

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "answers.h"

namespace fleetbert {
namespace {

using nlohmann::json;

void append_little_endian(std::string& raw, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) raw += static_cast<char>(value >> shift & 0xFF);
}

// Enough digits to read the same float again.
std::string as_text(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

std::string json_text(const std::string& text) { return json(text).dump(); }

}  // namespace

Reply render(const Question& question, const Answers& answers, const Classifier& classifier,
             const std::string& model) {
  const auto& bundle = classifier.bundle();
  const auto told = outputs_of(classifier);
  size_t truncated = 0;
  for (const auto& row : question.rows) truncated += row.truncated;
  auto body = "{\"model_name\":" + json_text(model) + ",\"model_version\":\"1\"";
  if (!question.id.empty()) body += ",\"id\":" + json_text(question.id);
  // `cut`: its former name, for one more release.
  const auto count = std::to_string(truncated);
  body += ",\"parameters\":{\"truncated\":" + count + ",\"cut\":" + count + "},\"outputs\":[";
  std::string all_raw;
  for (const auto& output : question.outputs) {
    const auto& of = *std::find_if(told.begin(), told.end(),
                                   [&](const Told& one) { return one.name == output.name; });
    std::string data, raw;
    for (size_t number = 0; number < answers.size(); ++number) {
      const auto& answer = answers[number];
      if (of.datatype == "INT32") {
        const auto layer = static_cast<uint32_t>(answer.layer);
        output.binary ? append_little_endian(raw, layer) : void(data += std::to_string(layer) + ',');
        continue;
      }
      if (of.datatype == "BYTES") {
        const auto text = text_of(bundle, question.rows[number], answer);
        if (output.binary) append_little_endian(raw, static_cast<uint32_t>(text.size()));
        output.binary ? raw += text : data += json_text(text) + ',';
        continue;
      }
      for (const auto value : numbers_of(bundle, output.name, answer)) {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        output.binary ? append_little_endian(raw, bits) : void(data += as_text(value) + ',');
      }
    }
    if (&output != &question.outputs.front()) body += ',';
    body += "{\"name\":\"" + of.name + "\",\"datatype\":\"" + of.datatype + "\",\"shape\":[" +
            std::to_string(answers.size()) +
            (of.columns == 0 ? "" : "," + std::to_string(of.columns)) + "],";
    if (output.binary) {
      body += "\"parameters\":{\"binary_data_size\":" + std::to_string(raw.size()) + "}}";
      all_raw += raw;
    } else {
      data.pop_back();
      body += "\"data\":[" + data + "]}";
    }
  }
  body += "]}";
  if (all_raw.empty()) return {std::move(body), std::nullopt};
  const auto head = body.size();
  return {body + all_raw, head};
}

}  // namespace fleetbert

#include "oip.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "answers.h"
#include "unicode.h"

namespace fleetbert {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kTokenTypes = 2;          // BERT's segments
constexpr double kLongestTimeout = 86400;  // seconds

const json& read_list(const json& message, const char* key) {
  static const json empty = json::array();
  const auto& entries = member(message, key);
  if (entries.is_null()) return empty;
  if (!entries.is_array()) {
    refuse(std::string(key) + " is " + show(entries) + "; it has to be a list");
  }
  return entries;
}

const json& read_parameters(const json& message, const std::string& where) {
  static const json empty = json::object();
  const auto& parameters = member(message, "parameters");
  if (parameters.is_null()) return empty;
  if (!parameters.is_object()) {
    refuse("parameters of " + where + " are " + show(parameters) + "; they have to be an object");
  }
  for (const auto& [key, value] : parameters.items()) {
    if (value.is_structured()) {
      refuse("parameter " + in_quotes(key) + " of " + where + " is " + show(value) +
             "; it has to be a string, a number, true or false");
    }
  }
  return parameters;
}

bool read_flag(const json& value, const std::string& key, const std::string& where) {
  if (!value.is_boolean()) {
    refuse("parameter '" + key + "' of " + where + " is " + show(value) +
           "; it has to be true or false");
  }
  return value.get<bool>();
}

std::string read_name(const json& entry, const std::string& where) {
  if (!entry.is_object()) refuse(where + " is " + show(entry) + "; it has to be an object");
  const auto& name = member(entry, "name");
  if (!name.is_string()) refuse(where + ".name is " + show(name) + "; it has to be a string");
  for (const auto* key : {"shared_memory_region", "classification"}) {
    if (read_parameters(entry, where).contains(key)) {
      refuse("parameter '" + std::string(key) + "' of " + where + " is not offered by this server");
    }
  }
  return name.get<std::string>();
}

// An input as it was sent: `raw` where its values are bytes after the JSON.
struct Tensor {
  std::string name;
  const json* entry = nullptr;
  std::optional<std::string_view> raw;
};

// The bytes after the JSON, as tensors take them.
class Rest {
 public:
  Rest(std::string_view bytes, bool is_there) : bytes_(bytes), is_there_(is_there) {}

  std::string_view take(const json& size, const std::string& name) {
    const auto of = "binary_data_size of input " + name;
    if (!size.is_number_unsigned()) {
      refuse(of + " is " + show(size) + "; it has to be a number of bytes");
    }
    if (!is_there_) {
      refuse("input " + name + " has binary_data_size, which needs the header " + kHeadLength);
    }
    const auto wanted = size.get<uint64_t>();
    if (wanted > bytes_.size()) {
      refuse(of + " is " + std::to_string(wanted) + ", but the body has " +
             std::to_string(bytes_.size()) + " bytes left");
    }
    const auto taken = bytes_.substr(0, static_cast<size_t>(wanted));
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool is_there_;
};

size_t read_header_length(const std::string& text, size_t body) {
  const bool digits = !text.empty() && text.size() < 19 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) {
    refuse(std::string(kHeadLength) + " is " + in_quotes(text) +
           "; it has to be a number of bytes");
  }
  const auto length = std::stoull(text);
  if (length > body) {
    refuse(std::string(kHeadLength) + " is " + text + ", but the body has " + std::to_string(body) +
           " bytes");
  }
  return static_cast<size_t>(length);
}

// [texts] or [texts, tokens]; all positive, the first within the limit.
std::vector<size_t> read_shape(const Tensor& tensor, size_t rank, const Limits& limits) {
  const auto where = "shape of input '" + tensor.name + "'";
  const std::string wanted = rank == 1 ? "[texts]" : "[texts, tokens]";
  const auto& shape = member(*tensor.entry, "shape");
  const auto is_integer = [](const json& size) { return size.is_number_integer(); };
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_integer)) {
    refuse(where + " has to be a list of integers: " + wanted);
  }
  if (shape.size() != rank) {
    refuse(where + " has " + std::to_string(shape.size()) + " dimensions; it has to be " + wanted);
  }
  std::vector<size_t> sizes;
  for (const auto& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() < 1) {
      refuse(where + " is " + shortened(shape.dump()) + "; each dimension has to be at least 1");
    }
    sizes.push_back(static_cast<size_t>(
        std::min<uint64_t>(size.get<uint64_t>(), std::numeric_limits<size_t>::max())));
  }
  if (sizes[0] > limits.max_texts) {
    refuse("input '" + tensor.name + "' has " + std::to_string(sizes[0]) +
               " texts; this server takes at most " + std::to_string(limits.max_texts) +
               " in a request",
           413);
  }
  return sizes;
}

[[noreturn]] void wrong_count(const Tensor& tensor, size_t found) {
  refuse("data of input '" + tensor.name + "' has " + std::to_string(found) +
         " elements, which does not fit its shape " + member(*tensor.entry, "shape").dump());
}

const json& read_data(const Tensor& tensor) {
  const auto& data = member(*tensor.entry, "data");
  if (!data.is_array()) {
    refuse("data of input '" + tensor.name + "' is " + show(data) + "; it has to be a list");
  }
  return data;
}

// The little-endian number that `size` bytes are.
uint64_t little_endian(std::string_view bytes, size_t size) {
  uint64_t value = 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::vector<std::string> split_raw(const Tensor& tensor, size_t count) {
  auto bytes = *tensor.raw;
  std::vector<std::string> texts;
  for (size_t number = 0; number < count; ++number) {
    const bool has_length = bytes.size() >= 4;
    const auto length = has_length ? little_endian(bytes, 4) : 0;
    if (!has_length || length > bytes.size() - 4) {
      refuse("element " + std::to_string(number) + " of input '" + tensor.name +
             "' goes past the tensor's " + std::to_string(tensor.raw->size()) + " bytes");
    }
    texts.emplace_back(bytes.substr(4, static_cast<size_t>(length)));
    if (!is_utf8(texts.back())) {
      refuse("element " + std::to_string(number) + " of input '" + tensor.name + "' is not UTF-8");
    }
    bytes.remove_prefix(4 + static_cast<size_t>(length));
  }
  if (!bytes.empty()) {
    refuse("input '" + tensor.name + "' has " + std::to_string(bytes.size()) +
           " bytes of data after its " + std::to_string(count) + " elements");
  }
  return texts;
}

std::vector<std::string> read_texts(const Tensor& tensor, const Limits& limits) {
  const auto& datatype = member(*tensor.entry, "datatype");
  if (datatype != "BYTES") {
    refuse("datatype of input '" + tensor.name + "' is " + show(datatype) +
           "; it has to be BYTES");
  }
  const auto& shape = member(*tensor.entry, "shape");
  const bool is_column = shape.is_array() && shape.size() == 2 && shape[1].is_number_integer() &&
                         shape[1] == 1;
  const auto count = read_shape(tensor, is_column ? 2 : 1, limits)[0];
  std::vector<std::string> texts;
  if (tensor.raw) {
    texts = split_raw(tensor, count);
  } else {
    const auto& data = read_data(tensor);
    if (data.size() != count) wrong_count(tensor, data.size());
    for (size_t number = 0; number < count; ++number) {
      const bool is_row = is_column && data[number].is_array() && data[number].size() == 1;
      const auto& text = is_row ? data[number][0] : data[number];
      if (!text.is_string()) {
        refuse("element " + std::to_string(number) + " of input '" + tensor.name + "' is " +
               show(text) + "; it has to be a string (BYTES)");
      }
      texts.push_back(text.get<std::string>());
    }
  }
  check_texts(texts, tensor.name, limits);
  return texts;
}

// Rows of integers of 0 to limit - 1.
struct Integers {
  size_t rows = 0, columns = 0;
  std::vector<int64_t> values;
};

int64_t read_integer(const json& value, const Tensor& tensor, size_t number) {
  if (!value.is_number_integer()) {
    refuse("element " + std::to_string(number) + " of input '" + tensor.name + "' is " +
           show(value) + "; it has to be an integer");
  }
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    refuse("input '" + tensor.name + "' holds " + value.dump() + ", which is no INT64");
  }
  return value.get<int64_t>();
}

Integers read_integers(const Tensor& tensor, const Limits& limits, size_t max_length,
                       int64_t limit, const std::string& meaning) {
  const auto& datatype = member(*tensor.entry, "datatype");
  if (datatype != "INT64" && datatype != "INT32") {
    refuse("datatype of input '" + tensor.name + "' is " + show(datatype) +
           "; it has to be INT64 or INT32");
  }
  const auto shape = read_shape(tensor, 2, limits);
  if (shape[1] > max_length) {
    refuse("input '" + tensor.name + "' has " + std::to_string(shape[1]) +
           " tokens a text; the model takes at most " + std::to_string(max_length));
  }
  Integers found{shape[0], shape[1], {}};
  const auto count = found.rows * found.columns;
  if (tensor.raw) {
    const size_t size = datatype == "INT64" ? 8 : 4;
    if (tensor.raw->size() != count * size) {
      refuse("input '" + tensor.name + "' has " + std::to_string(tensor.raw->size()) +
             " bytes of data; its shape and datatype need " + std::to_string(count * size));
    }
    for (size_t i = 0; i < count; ++i) {
      const auto bits = little_endian(tensor.raw->substr(i * size), size);
      found.values.push_back(size == 8 ? static_cast<int64_t>(bits)
                                       : static_cast<int32_t>(static_cast<uint32_t>(bits)));
    }
  } else {
    const auto& data = read_data(tensor);
    if (!data.empty() && data[0].is_array()) {
      if (data.size() != found.rows) {
        refuse("data of input '" + tensor.name + "' has " + std::to_string(data.size()) +
               " rows, which does not fit its shape " + member(*tensor.entry, "shape").dump());
      }
      for (size_t row = 0; row < found.rows; ++row) {
        if (!data[row].is_array() || data[row].size() != found.columns) {
          refuse("row " + std::to_string(row) + " of input '" + tensor.name + "' is " +
                 show(data[row]) + "; its shape asks for a list of " +
                 std::to_string(found.columns));
        }
        for (const auto& value : data[row]) {
          found.values.push_back(read_integer(value, tensor, found.values.size()));
        }
      }
    } else {
      if (data.size() != count) wrong_count(tensor, data.size());
      for (const auto& value : data) {
        found.values.push_back(read_integer(value, tensor, found.values.size()));
      }
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (found.values[i] < 0 || found.values[i] >= limit) {
      refuse("input '" + tensor.name + "' holds " + std::to_string(found.values[i]) + " at [" +
             std::to_string(i / found.columns) + ", " + std::to_string(i % found.columns) + "]; " +
             meaning + " are 0 to " + std::to_string(limit - 1));
    }
  }
  return found;
}

using Tensors = std::map<std::string, Tensor>;

// What models of questions call the texts of their pairs.
const std::map<std::string, std::string> kQuestion = {{"question", "text"},
                                                      {"context", "text_pair"}};

std::vector<Row> rows_of_texts(const Tensors& inputs, const Classifier& classifier,
                               const Limits& limits) {
  for (const auto* name : {"input_ids", "token_type_ids", "attention_mask"}) {
    if (inputs.count(name)) {
      refuse("input 'text' and input '" + std::string(name) + "' are both given; send one or the "
             "other");
    }
  }
  const bool of_questions = classifier.bundle().kind == Kind::kAnswer;
  const auto first = inputs.find("text");
  if (first == inputs.end()) refuse("input 'question' is missing: this model answers it");
  const auto texts = read_texts(first->second, limits);
  std::vector<std::string> seconds(texts.size());
  if (classifier.bundle().pair) {
    const auto found = inputs.find("text_pair");
    if (found == inputs.end()) {
      refuse(of_questions ? "input 'context' is missing: this model finds answers in it"
                          : "input 'text_pair' is missing: this model answers pairs of texts");
    }
    seconds = read_texts(found->second, limits);
    if (seconds.size() != texts.size()) {
      refuse("input '" + found->second.name + "' has " + std::to_string(seconds.size()) +
             " texts, but input '" + first->second.name + "' has " + std::to_string(texts.size()));
    }
  }
  std::vector<Row> rows;
  for (size_t i = 0; i < texts.size(); ++i) rows.push_back(classifier.encode(texts[i], seconds[i]));
  return rows;
}

std::vector<Row> rows_of_ids(const Tensors& inputs, const Classifier& classifier,
                             const Limits& limits) {
  const auto ids = inputs.find("input_ids");
  if (ids == inputs.end()) refuse("inputs hold neither 'text' nor 'input_ids'; send one of them");
  if (inputs.count("text_pair")) {
    refuse("input 'text_pair' goes with input 'text', not with 'input_ids'");
  }
  const auto length = classifier.bundle().max_length;
  const auto vocab_size = static_cast<int64_t>(classifier.tokenizer().vocab_size());
  const auto found =
      read_integers(ids->second, limits, length, vocab_size, "the model's token ids");
  // Further values of these tokens, or zeros.
  const auto read_beside = [&](const char* name, int64_t limit, const char* meaning) {
    const auto tensor = inputs.find(name);
    if (tensor == inputs.end()) return std::vector<int64_t>(found.values.size(), 0);
    auto beside = read_integers(tensor->second, limits, length, limit, meaning);
    if (beside.rows != found.rows || beside.columns != found.columns) {
      refuse("shape of input '" + std::string(name) + "' is not that of 'input_ids'");
    }
    return std::move(beside.values);
  };
  const auto types = read_beside("token_type_ids", kTokenTypes, "token types");
  const auto masks = read_beside("attention_mask", 2, "attention masks");
  const bool has_masks = inputs.count("attention_mask") > 0;
  const auto pad = classifier.tokenizer().pad_id();
  std::vector<Row> rows(found.rows);
  for (size_t row = 0; row < found.rows; ++row) {
    const auto where = "text " + std::to_string(row) + " of input '";
    const auto start = row * found.columns;
    const auto* first = found.values.data() + start;
    const auto* end = first + found.columns;
    if (has_masks) {
      const auto* mask = masks.data() + start;
      if (!std::is_sorted(mask, mask + found.columns, std::greater<>())) {
        refuse(where + "attention_mask' is not ones followed by zeros: padding stands at the end");
      }
      end = first + std::count(mask, mask + found.columns, 1);
    } else {
      while (end != first && end[-1] == pad) --end;
    }
    if (end == first) refuse(where + "input_ids' holds only padding");
    rows[row].input_ids.assign(first, end);
    const auto* type = types.data() + start;
    rows[row].token_type_ids.assign(type, type + (end - first));
    if (!std::is_sorted(type, type + (end - first))) {
      refuse(where + "token_type_ids' is not zeros followed by ones");
    }
  }
  return rows;
}

// The inputs that the model tells of; attention_mask goes with ids as well. Where answers have
// characters of texts there are no token ids, which have none.
std::vector<std::string> inputs_of(const Bundle& bundle) {
  if (bundle.kind == Kind::kAnswer) return {"question", "context"};
  std::vector<std::string> names = {"text"};
  if (bundle.pair) names.push_back("text_pair");
  if (!bundle.per_token()) names.insert(names.end(), {"input_ids", "token_type_ids"});
  return names;
}

Tensors read_inputs(const json& message, Rest& rest, const Bundle& bundle) {
  Tensors inputs;
  const bool of_questions = bundle.kind == Kind::kAnswer;
  auto known = inputs_of(bundle);
  if (of_questions) known.insert(known.end(), {"text", "text_pair"});
  const auto& entries = read_list(message, "inputs");
  for (size_t number = 0; number < entries.size(); ++number) {
    const auto where = "inputs[" + std::to_string(number) + "]";
    const auto& entry = entries[number];
    Tensor tensor{read_name(entry, where), &entry, std::nullopt};
    const auto& name = tensor.name;
    const bool is_mask = name == "attention_mask" && !bundle.per_token();
    if (!is_mask && std::find(known.begin(), known.end(), name) == known.end()) {
      refuse("input " + in_quotes(name) + " is unknown; this model takes " +
             (of_questions ? "question and context" : bundle.pair ? "text and text_pair" : "text") +
             (bundle.per_token() ? "" : ", or input_ids and token_type_ids"));
    }
    const bool has_data = !member(entry, "data").is_null();
    const auto& parameters = read_parameters(entry, where);
    if (parameters.contains("binary_data_size")) {
      if (has_data) {
        refuse("input " + in_quotes(name) +
               " has data and binary_data_size; send one or the other");
      }
      tensor.raw = rest.take(parameters["binary_data_size"], in_quotes(name));
    } else if (!has_data) {
      refuse("data of input " + in_quotes(name) + " is missing");
    }
    const auto usual = kQuestion.find(name);
    if (!inputs.emplace(usual == kQuestion.end() ? name : usual->second, tensor).second) {
      refuse("input " + in_quotes(name) + " is given twice");
    }
  }
  if (inputs.empty()) refuse("inputs is empty or missing; it has to be a list of tensors");
  if (rest.left()) {
    refuse("the body has " + std::to_string(rest.left()) + " bytes after the last binary tensor");
  }
  return inputs;
}

// What can be asked for.
std::vector<Told> outputs_of(const Classifier& classifier) {
  return tensors_of(classifier.bundle(), classifier.variant().early_exit);
}

std::vector<Question::Output> read_outputs(const json& message, bool all_binary,
                                           const std::vector<Told>& told) {
  std::vector<std::string> known;
  for (const auto& one : told) known.push_back(one.name);
  std::vector<Question::Output> outputs;
  std::set<std::string> names;
  const auto& entries = read_list(message, "outputs");
  for (size_t number = 0; number < entries.size(); ++number) {
    const auto where = "outputs[" + std::to_string(number) + "]";
    const auto name = read_name(entries[number], where);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string choice;
      for (const auto& one : known) choice += (choice.empty() ? "" : ", ") + one;
      refuse("output " + in_quotes(name) + " is unknown; choose from " + choice);
    }
    if (!names.insert(name).second) refuse("output " + in_quotes(name) + " is asked for twice");
    const auto& parameters = read_parameters(entries[number], where);
    bool binary = all_binary;
    if (parameters.contains("binary_data")) {
      const auto of = "output " + in_quotes(name);
      binary = read_flag(parameters["binary_data"], "binary_data", of);
    }
    outputs.push_back({name, binary});
  }
  if (outputs.empty()) {
    for (const auto& name : known) outputs.push_back({name, all_binary});
  }
  return outputs;
}

// From 0 (all layers) to 1; without meaning for variants that no text leaves early.
std::optional<double> read_speed(const json& parameters) {
  const auto& speed = member(parameters, "speed");
  if (speed.is_null()) return std::nullopt;
  double value = -1;
  if (speed.is_number()) value = speed.get<double>();
  if (speed.is_string()) {
    const auto& text = speed.get_ref<const std::string&>();
    char* end = nullptr;
    value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') value = -1;
  }
  if (!(value >= 0 && value <= 1)) {
    refuse("parameter 'speed' is " + show(speed) + "; it has to be a number from 0 to 1");
  }
  return value;
}

double read_timeout(const json& parameters, const Limits& limits) {
  const auto& timeout = member(parameters, "timeout");
  if (timeout.is_null()) return limits.timeout_seconds;
  if (!timeout.is_number_unsigned()) {
    refuse("parameter 'timeout' is " + show(timeout) +
           "; it has to be a whole number of microseconds");
  }
  const auto seconds = std::min(timeout.get<double>() / 1e6, kLongestTimeout);
  return seconds > 0 ? seconds : limits.timeout_seconds;
}

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

Question read_question(const std::string& body, const std::optional<std::string>& header_length,
                       const Classifier& classifier, const Limits& limits) {
  const auto head = header_length ? read_header_length(*header_length, body.size()) : body.size();
  const auto message = parse_body(head == body.size() ? body : body.substr(0, head));
  Question question;
  const auto& id = member(message, "id");
  if (!id.is_null() && !id.is_string()) refuse("id is " + show(id) + "; it has to be a string");
  if (id.is_string()) question.id = id.get<std::string>();
  const auto& parameters = read_parameters(message, "the request");
  Rest rest(std::string_view(body).substr(head), header_length.has_value());
  const auto inputs = read_inputs(message, rest, classifier.bundle());
  const bool all_binary =
      parameters.contains("binary_data_output") &&
      read_flag(parameters["binary_data_output"], "binary_data_output", "the request");
  question.unknown_parameters =
      names_of_others(parameters, {"timeout", "speed", "binary_data_output"});
  question.outputs = read_outputs(message, all_binary, outputs_of(classifier));
  const auto speed = read_speed(parameters);
  question.timeout_seconds = read_timeout(parameters, limits);
  const bool of_texts = inputs.count("text") || classifier.bundle().per_token();
  question.rows = of_texts ? rows_of_texts(inputs, classifier, limits)
                           : rows_of_ids(inputs, classifier, limits);
  for (auto& row : question.rows) row.speed = speed;
  return question;
}

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

std::string server_metadata() {
  return ordered_json{{"name", "fleetbert-lite"},
                      {"version", FLEETBERT_VERSION},
                      {"extensions", ordered_json::array({"binary_tensor_data", "parameters"})}}
      .dump();
}

std::string model_metadata(const Classifier& classifier, const std::string& model) {
  const auto& bundle = classifier.bundle();
  const auto tensor = [](const std::string& name, const std::string& datatype,
                         std::vector<long> shape) {
    return ordered_json{{"name", name}, {"datatype", datatype}, {"shape", std::move(shape)}};
  };
  auto inputs = ordered_json::array();
  for (const auto& name : inputs_of(bundle)) {
    const bool is_ids = name == "input_ids" || name == "token_type_ids";
    inputs.push_back(is_ids ? tensor(name, "INT64", {-1, -1}) : tensor(name, "BYTES", {-1}));
  }
  auto outputs = ordered_json::array();
  for (const auto& one : outputs_of(classifier)) {
    std::vector<long> shape = {-1};
    if (one.columns != 0) shape.push_back(static_cast<long>(one.columns));
    outputs.push_back(tensor(one.name, one.datatype, std::move(shape)));
  }
  ordered_json parameters{{"task", bundle.task},
                          {"labels", labels_in_json(bundle)},
                          {"max_length", bundle.max_length},
                          {"variant", classifier.variant().name}};
  if (classifier.variant().early_exit) parameters["speed"] = classifier.speed();
  return ordered_json{{"name", model},
                      {"versions", ordered_json::array({"1"})},
                      {"platform", "paddle_lite"},
                      {"inputs", inputs},
                      {"outputs", outputs},
                      {"parameters", parameters}}
      .dump();
}

}  // namespace fleetbert

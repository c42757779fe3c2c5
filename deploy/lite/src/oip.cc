#include "oip.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "answers.h"
#include "oip_tensors.h"

namespace fleetbert {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kTokenTypes = 2;          // BERT's segments
constexpr double kLongestTimeout = 86400;  // seconds

using Tensors = std::map<std::string, InputTensor>;

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

Tensors read_inputs(const json& message, RestOfBody& rest, const Bundle& bundle) {
  Tensors inputs;
  const bool of_questions = bundle.kind == Kind::kAnswer;
  auto known = inputs_of(bundle);
  if (of_questions) known.insert(known.end(), {"text", "text_pair"});
  const auto& entries = read_list(message, "inputs");
  for (size_t number = 0; number < entries.size(); ++number) {
    const auto where = "inputs[" + std::to_string(number) + "]";
    const auto& entry = entries[number];
    InputTensor tensor{read_name(entry, where), &entry, std::nullopt};
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

}  // namespace

std::vector<Told> outputs_of(const Classifier& classifier) {
  return tensors_of(classifier.bundle(), classifier.variant().early_exit);
}

Question read_question(const std::string& body, const std::optional<std::string>& header_length,
                       const Classifier& classifier, const Limits& limits) {
  const auto head = header_length ? read_header_length(*header_length, body.size()) : body.size();
  const auto message = parse_body(head == body.size() ? body : body.substr(0, head));
  Question question;
  const auto& id = member(message, "id");
  if (!id.is_null() && !id.is_string()) refuse("id is " + show(id) + "; it has to be a string");
  if (id.is_string()) question.id = id.get<std::string>();
  const auto& parameters = read_parameters(message, "the request");
  RestOfBody rest(std::string_view(body).substr(head), header_length.has_value());
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

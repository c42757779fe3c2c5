// The Open Inference Protocol v2 over HTTP, for one model, without the sockets: what the server for
// x86 and GPUs answers too. https://github.com/kserve/open-inference-protocol
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "answers.h"
#include "body.h"
#include "classifier.h"
#include "queue.h"

namespace fleetbert {

// The HTTP header with the length of the JSON before binary tensors.
inline constexpr const char* kHeadLength = "Inference-Header-Content-Length";

// A request whose inputs are checked and turned into token ids.
struct Question {
  struct Output {
    std::string name;
    bool binary = false;
  };
  std::string id;
  std::vector<Row> rows;
  std::vector<Output> outputs;
  double timeout_seconds = 0;
  std::string unknown_parameters;  // names of those of the request that change nothing
};

struct Reply {
  std::string body;
  std::optional<size_t> head;  // length of the JSON, where binary tensors follow it
};

// What can be asked for.
std::vector<Told> outputs_of(const Classifier& classifier);

// What a request asks; `header_length` is its Inference-Header-Content-Length. Throws Failure with
// the field that is wrong.
Question read_question(const std::string& body, const std::optional<std::string>& header_length,
                       const Classifier& classifier, const Limits& limits);

// The answer's body.
Reply render(const Question& question, const Answers& answers, const Classifier& classifier,
             const std::string& model);

std::string server_metadata();
std::string model_metadata(const Classifier& classifier, const std::string& model);

}  // namespace fleetbert

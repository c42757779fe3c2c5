// fleetbert-lite-server: a bundle's model on a board, over HTTP.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>

#include "arguments.h"
#include "classifier.h"
#include "error.h"
#include "http.h"
#include "oip.h"
#include "questions.h"
#include "queue.h"

namespace fleetbert {
namespace {

constexpr char kUsage[] = R"(usage: fleetbert-lite-server --bundle DIR [options]

  --variant NAME          the variant to run (default: the only one for this processor)
  --name NAME             the model's name in URLs (model)
  --host ADDRESS          to listen on (127.0.0.1); 0.0.0.0 lets other machines reach it
  --port N                the port; 0 takes a free one (8000)
  --threads N             threads of the engine (1)
  --power-mode MODE       high, low, full, no-bind, rand-high or rand-low cores (no-bind)
  --connections N         requests that are answered at a time; more wait (32)
  --queue-texts N         texts that may wait; a full queue answers 503 (256)
  --max-texts N           texts in a request; more are refused with 413 (64)
  --max-text-bytes N      bytes of a text (65536)
  --max-body-bytes N      bytes of a request's body (1048576)
  --timeout-ms N          time limit of requests that name none (30000)
  --body-seconds N        time limit for receiving a request's body (30)
  --speed S               early exit, for requests that name no speed: a text exits when its
                          uncertainty is below S, from 0 (never) to 1 (default: the variant's)
  --engine lite|fake      fake: for tests, answers computed from the token ids alone
)";

struct Settings {
  std::string model, host;
  int port = 0;
  size_t queue_texts = 0;
  HttpLimits http;
  Limits limits;
};

// Requests by status, and how long they took.
class Counter {
 public:
  void add(int status, double seconds) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++codes_[status];
    seconds_ += seconds;
  }

  std::string text(const std::string& model, const QueueCounts& queue) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto of = "model=\"" + model + "\",version=\"1\"";
    std::ostringstream out;
    const auto head = [&](const char* name, const char* kind, const char* meaning) {
      out << "# HELP " << name << ' ' << meaning << "\n# TYPE " << name << ' ' << kind << '\n';
    };
    const auto one = [&](const char* name, const char* kind, const char* meaning, double value) {
      head(name, kind, meaning);
      out << name << '{' << of << "} " << value << '\n';
    };
    out.precision(15);
    head("fleetbert_requests_total", "counter", "Inference requests answered, by status code");
    size_t count = 0;
    for (const auto& [code, requests] : codes_) {
      out << "fleetbert_requests_total{" << of << ",protocol=\"http\",code=\"" << code << "\"} "
          << requests << '\n';
      count += requests;
    }
    head("fleetbert_request_seconds", "summary", "From a request's last byte to its answer");
    out << "fleetbert_request_seconds_sum{" << of << "} " << seconds_
        << "\nfleetbert_request_seconds_count{" << of << "} " << count << '\n';
    one("fleetbert_queued_texts", "gauge", "Texts that wait or are being answered",
        static_cast<double>(queue.waiting));
    one("fleetbert_batches_total", "counter", "Batches of requests answered",
        static_cast<double>(queue.batches));
    one("fleetbert_texts_total", "counter", "Texts answered", static_cast<double>(queue.texts));
    one("fleetbert_tokens_total", "counter", "Their tokens", static_cast<double>(queue.tokens));
    one("fleetbert_truncated_texts_total", "counter", "Texts truncated to the model's length",
        static_cast<double>(queue.truncated));
    one("fleetbert_cut_texts_total", "counter", "truncated_texts by its former name",
        static_cast<double>(queue.truncated));
    if (!queue.exits.empty()) {
      head("fleetbert_exits_total", "counter", "Texts by the layer that answered them");
    }
    for (const auto& [layer, texts] : queue.exits) {
      out << "fleetbert_exits_total{" << of << ",layer=\"" << layer << "\"} " << texts << '\n';
    }
    one("fleetbert_engine_seconds_total", "counter", "Time in the engine", queue.seconds);
    return out.str();
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, size_t> codes_;
  double seconds_ = 0;
};

HttpResponse failure(int status, const std::string& message) {
  HttpResponse response{status, error_body(message)};
  if (status == 503) response.fields.emplace_back("Retry-After", "1");
  return response;
}

constexpr char kQuestionAnswering[] = "question-answering";

// What a path asks of the model: "", "ready", "infer" or kQuestionAnswering. Throws Failure 404.
std::string model_call(const std::string& path, const std::string& model) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '/');) parts.push_back(part);
  const auto nothing = [&] { return Failure(404, "there is nothing at " + in_quotes(path)); };
  const auto check_name = [&](const std::string& name) {
    if (name != model) {
      throw Failure(404, "there is no model " + in_quotes(name) + "; this server has " +
                             in_quotes(model));
    }
  };
  // "", ["models", MODEL], kQuestionAnswering
  if (parts.back() == kQuestionAnswering && path.back() != '/') {
    const bool is_below = parts.size() == 4 && parts[1] == "models";
    if (is_below) check_name(parts[2]);
    if (is_below || parts.size() == 2) return kQuestionAnswering;
  }
  // "", "v2", "models", MODEL, ["versions", VERSION], [CALL]
  if (parts.size() < 4 || parts[1] != "v2" || parts[2] != "models" || path.back() == '/') {
    throw nothing();
  }
  check_name(parts[3]);
  size_t next = 4;
  if (parts.size() > next && parts[next] == "versions") {
    if (parts.size() == next + 1) throw nothing();
    if (parts[next + 1] != "1") {
      throw Failure(404, "model " + in_quotes(model) + " has no version " +
                             in_quotes(parts[next + 1]) + "; it has 1");
    }
    next += 2;
  }
  if (parts.size() == next) return "";
  const auto& call = parts[next];
  if (parts.size() > next + 1 || (call != "ready" && call != "infer")) throw nothing();
  return call;
}

class Service {
 public:
  Service(const Classifier& classifier, const Settings& settings)
      : classifier_(classifier), settings_(settings), queue_(classifier, settings.queue_texts) {}

  void drain() { draining_ = true; }

  HttpResponse answer(const HttpRequest& request) {
    const auto started = Clock::now();
    const auto& method = request.method;
    bool is_inference = false;
    const auto response = guarded([&] {
      if (method == "GET" || method == "HEAD") return get(request);
      const bool is_get = is_get_path(request.path);
      const auto call = is_get ? "" : model_call(request.path, settings_.model);
      const bool is_question = call == kQuestionAnswering;
      if (method != "POST" || !(is_question || call == "infer")) throw not_allowed(request);
      is_inference = true;
      check_body(request);
      return is_question ? find_answer(request, started) : infer(request, started);
    });
    if (is_inference) {
      counter_.add(response.status, std::chrono::duration<double>(Clock::now() - started).count());
    }
    return response;
  }

 private:
  static bool is_get_path(const std::string& path) {
    return path == "/v2" || path == "/v2/" || path == "/v2/health/live" ||
           path == "/v2/health/ready" || path == "/metrics";
  }

  static Failure not_allowed(const HttpRequest& request) {
    return {405, "method " + in_quotes(request.method) + " is not allowed at " +
                     in_quotes(request.path)};
  }

  template <typename Answer>
  HttpResponse guarded(Answer answer) {
    try {
      return answer();
    } catch (const Failure& refused) {
      return failure(refused.status, refused.what());
    } catch (const QueueFull& full) {
      return failure(503, full.what());
    } catch (const DeadlinePassed& passed) {
      return failure(504, passed.what());
    } catch (const std::exception& error) {
      std::cerr << "error: a request failed: " + std::string(error.what()) + "\n";
      return failure(500, "the server failed at this request; its log says why");
    }
  }

  HttpResponse get(const HttpRequest& request) {
    const auto& path = request.path;
    if (path == "/v2" || path == "/v2/") return {200, server_metadata()};
    if (path == "/v2/health/live") return {200, "{\"live\":true}"};
    if (path == "/v2/health/ready") return readiness("\"live\":true");
    if (path == "/metrics") {
      return {200, counter_.text(settings_.model, queue_.counts()), "text/plain; version=0.0.4"};
    }
    const auto call = model_call(path, settings_.model);
    if (call == "ready") return readiness("\"name\":\"" + settings_.model + "\"");
    if (call == "infer" || call == kQuestionAnswering) throw not_allowed(request);
    return {200, model_metadata(classifier_, settings_.model)};
  }

  HttpResponse readiness(const std::string& start) {
    if (!draining_) return {200, "{" + start + ",\"ready\":true}"};
    auto response = failure(503, "");
    response.body = "{" + start + ",\"ready\":false,\"error\":\"the server is stopping\"}";
    return response;
  }

  void check_body(const HttpRequest& request) {
    if (draining_) throw Failure(503, "the server is stopping");
    const auto encoding = request.fields.find("content-encoding");
    if (encoding != request.fields.end() && encoding->second != "identity") {
      throw Failure(415, "Content-Encoding " + in_quotes(encoding->second) +
                             " is not known here; send the body as it is");
    }
  }

  Answers ask(const std::vector<Row>& rows, double seconds, Clock::time_point started) {
    const auto timeout = std::chrono::duration<double>(seconds);
    return queue_.answer(rows, started + std::chrono::duration_cast<Clock::duration>(timeout));
  }

  static void name_unknown(const std::string& parameters, HttpResponse& response) {
    if (!parameters.empty()) response.fields.emplace_back("x-unknown-parameters", parameters);
  }

  HttpResponse find_answer(const HttpRequest& request, Clock::time_point started) {
    const auto question =
        read_context_question(request.body, classifier_, settings_.model, settings_.limits);
    const auto answers = ask({question.row}, settings_.limits.timeout_seconds, started);
    HttpResponse response{200, render(question, answers[0], classifier_.bundle())};
    name_unknown(question.unknown_parameters, response);
    return response;
  }

  HttpResponse infer(const HttpRequest& request, Clock::time_point started) {
    const auto length = request.fields.find("inference-header-content-length");
    std::optional<std::string> head;
    if (length != request.fields.end()) head = length->second;
    auto question = read_question(request.body, head, classifier_, settings_.limits);
    const auto answers = ask(question.rows, question.timeout_seconds, started);
    auto reply = render(question, answers, classifier_, settings_.model);
    HttpResponse response{200, std::move(reply.body)};
    if (reply.head) {
      response.type = "application/octet-stream";
      response.fields.emplace_back(kHeadLength, std::to_string(*reply.head));
    }
    name_unknown(question.unknown_parameters, response);
    return response;
  }

  const Classifier& classifier_;
  const Settings settings_;
  Counter counter_;
  std::atomic<bool> draining_{false};
  Queue queue_;
};

Settings read_settings(const Arguments& arguments) {
  Settings settings;
  settings.model = arguments.text("name", "model");
  const bool is_name = !settings.model.empty() && settings.model.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
                           std::string::npos;
  if (!is_name) {
    throw UserError("--name is '" + settings.model + "'; it has to be letters, digits, . _ and -");
  }
  const auto number = [&](const char* name, long otherwise, long most) {
    return static_cast<size_t>(arguments.number(name, otherwise, 1, most));
  };
  settings.host = arguments.text("host", "127.0.0.1");
  settings.port = static_cast<int>(arguments.number("port", 8000, 0, 65535));
  settings.http.threads = number("connections", 32, 1024);
  settings.queue_texts = number("queue-texts", 256, 1000000);
  settings.http.body_bytes = number("max-body-bytes", 1 << 20, 1L << 30);
  settings.http.body_seconds = arguments.number("body-seconds", 30, 1, 86400);
  settings.limits.max_texts = number("max-texts", 64, 100000);
  settings.limits.max_text_bytes = number("max-text-bytes", 1 << 16, 1L << 30);
  const auto timeout_ms = number("timeout-ms", 30000, 86400000);
  settings.limits.timeout_seconds = static_cast<double>(timeout_ms) / 1e3;
  if (settings.queue_texts < settings.limits.max_texts) {
    throw UserError("--queue-texts is smaller than --max-texts: a request of so many texts would "
                    "never be taken");
  }
  return settings;
}

// A descriptor of 0 to 2 that is closed would become a client's connection, and the log its answer.
void open_standard_streams() {
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= 2) descriptor = open("/dev/null", O_RDWR);
  if (descriptor > 2) close(descriptor);
}

int serve(int argc, char** argv) {
  open_standard_streams();
  if (std::count(argv, argv + argc, std::string_view("--help")) > 0) {
    std::cout << kUsage;
    return 0;
  }
  const Arguments arguments(
      argc, argv, 1,
      {"bundle", "variant", "name", "host", "port", "threads", "power-mode", "connections",
       "queue-texts", "max-texts", "max-text-bytes", "max-body-bytes", "timeout-ms",
       "body-seconds", "speed", "engine", "fake-delay-ms"});
  if (!arguments.words().empty()) {
    throw UserError("'" + arguments.words()[0] + "' is no option; see --help");
  }
  const auto settings = read_settings(arguments);
  signal(SIGPIPE, SIG_IGN);
  const auto classifier = Classifier::open(std::filesystem::u8path(arguments.needed("bundle")),
                                           arguments.text("variant"), engine_options(arguments));
  Service service(*classifier, settings);
  HttpServer server(settings.http,
                    {[&](const HttpRequest& request) { return service.answer(request); },
                     [](const HttpRequest& request) { return request.method != "POST"; }, failure});
  const int port = server.bind(settings.host, settings.port);
  if (port < 0) {
    throw UserError("cannot listen on " + settings.host + " port " + std::to_string(settings.port) +
                    ": choose another with --host and --port");
  }
  const bool is_ipv6 = settings.host.find(':') != std::string::npos;
  std::cout << "Serving " << settings.model << " (" << classifier->variant().name << ") on http://"
            << (is_ipv6 ? "[" + settings.host + "]" : settings.host) << ':' << port << std::endl;
  server.run([&] {
    std::cout << "Stopping: what was taken is answered first" << std::endl;
    service.drain();
  });
  return 0;
}

}  // namespace
}  // namespace fleetbert

int main(int argc, char** argv) { return fleetbert::run_program(fleetbert::serve, argc, argv); }

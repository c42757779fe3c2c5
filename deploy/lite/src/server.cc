// fleetbert-lite-server: a bundle's model on a board, over HTTP.
#include <httplib.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <map>
#include <sstream>

#include "arguments.h"
#include "classifier.h"
#include "error.h"
#include "oip.h"
#include "queue.h"

namespace fleetbert {
namespace {

constexpr char kUsage[] = R"(usage: fleetbert-lite-server --bundle DIR [options]

  --variant NAME          one of the bundle's; else the only one for this processor
  --name NAME             what the model is called in URLs (model)
  --host ADDRESS          to listen on (0.0.0.0)
  --port N                0: any free one (8000)
  --threads N             threads of the engine (1)
  --power-mode MODE       high, low, full, no-bind, rand-high or rand-low cores (no-bind)
  --connections N         that are served at a time; more wait (32)
  --queue-texts N         a full queue answers 503 (256)
  --max-texts N           of one request; more are refused with 413 (64)
  --max-text-bytes N      of one text (65536)
  --max-body-bytes N      of one request (1048576)
  --timeout-ms N          of requests that name no timeout (30000)
  --body-seconds N        for a request's body to come (30)
  --speed S               of variants with early exit, where a request names none: texts leave whose
                          uncertainty is under it, 0 (none) to 1 (the variant's own speed)
  --engine lite|fake      fake: for tests, answers from the ids alone
)";

constexpr auto kIdle = 5;  // seconds that a connection may be silent

struct Settings {
  std::string model, host;
  int port = 0;
  size_t connections = 0, queue_texts = 0, max_body_bytes = 0;
  long body_seconds = 0;
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
    one("fleetbert_cut_texts_total", "counter", "Texts cut to the model's length",
        static_cast<double>(queue.cut));
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

void set_json(httplib::Response& response, int status, const std::string& body) {
  response.status = status;
  response.set_content(body, "application/json");
}

void set_failure(httplib::Response& response, int status, const std::string& message) {
  if (status == 503) response.set_header("Retry-After", "1");
  set_json(response, status, error_body(message));
}

// What a path asks of the model: "", "ready" or "infer". Throws Failure 404.
std::string model_call(const std::string& path, const std::string& model) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '/');) parts.push_back(part);
  const auto nothing = [&] { return Failure(404, "there is nothing at " + in_quotes(path)); };
  // "", "v2", "models", MODEL, ["versions", VERSION], [CALL]
  if (parts.size() < 4 || parts[1] != "v2" || parts[2] != "models" || path.back() == '/') {
    throw nothing();
  }
  if (parts[3] != model) {
    throw Failure(404, "there is no model " + in_quotes(parts[3]) + "; this server has " +
                           in_quotes(model));
  }
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

  void get(const httplib::Request& request, httplib::Response& response) {
    guarded(response, [&] {
      const auto& path = request.path;
      if (path == "/v2" || path == "/v2/") return set_json(response, 200, server_metadata());
      if (path == "/v2/health/live") return set_json(response, 200, "{\"live\":true}");
      if (path == "/v2/health/ready") return set_ready(response, "\"live\":true");
      if (path == "/metrics") {
        response.set_content(counter_.text(settings_.model, queue_.counts()),
                             "text/plain; version=0.0.4");
        return;
      }
      const auto call = model_call(path, settings_.model);
      if (call == "ready") return set_ready(response, "\"name\":\"" + settings_.model + "\"");
      if (call == "infer") throw not_allowed(request);
      set_json(response, 200, model_metadata(classifier_, settings_.model));
    });
  }

  void post(const httplib::Request& request, httplib::Response& response,
            const httplib::ContentReader& reader) {
    auto started = Clock::now();
    bool is_inference = false;
    guarded(response, [&] {
      // First, or the connection would take what is left of it for the next request.
      const auto body = read_body(request, response, reader);
      started = Clock::now();
      if (is_get_path(request.path) || model_call(request.path, settings_.model) != "infer") {
        throw not_allowed(request);
      }
      is_inference = true;
      infer(request, response, body);
    });
    if (is_inference) {
      counter_.add(response.status, std::chrono::duration<double>(Clock::now() - started).count());
    }
  }

  void other(const httplib::Request& request, httplib::Response& response) {
    guarded(response, [&] {
      if (!is_get_path(request.path)) model_call(request.path, settings_.model);
      throw not_allowed(request);
    });
  }

 private:
  static bool is_get_path(const std::string& path) {
    return path == "/v2" || path == "/v2/" || path == "/v2/health/live" ||
           path == "/v2/health/ready" || path == "/metrics";
  }

  static Failure not_allowed(const httplib::Request& request) {
    return {405, "method " + in_quotes(request.method) + " is not allowed at " +
                     in_quotes(request.path)};
  }

  template <typename Answer>
  void guarded(httplib::Response& response, Answer answer) {
    try {
      answer();
    } catch (const Failure& failure) {
      set_failure(response, failure.status, failure.what());
    } catch (const QueueFull& full) {
      set_failure(response, 503, full.what());
    } catch (const DeadlinePassed& passed) {
      set_failure(response, 504, passed.what());
    } catch (const std::exception& error) {
      std::cerr << "error: a request failed: " + std::string(error.what()) + "\n";
      set_failure(response, 500, "the server failed at this request; its log says why");
    }
  }

  void set_ready(httplib::Response& response, const std::string& start) {
    if (!draining_) return set_json(response, 200, "{" + start + ",\"ready\":true}");
    response.set_header("Retry-After", "1");
    set_json(response, 503, "{" + start + ",\"ready\":false,\"error\":\"the server is stopping\"}");
  }

  std::string read_body(const httplib::Request& request, httplib::Response& response,
                        const httplib::ContentReader& reader) {
    const auto limit = settings_.max_body_bytes;
    const auto too_large = Failure(413, "the body is larger than the " + std::to_string(limit) +
                                            " bytes that this server takes");
    const auto deadline = Clock::now() + std::chrono::seconds(settings_.body_seconds);
    std::string body;
    bool is_large = false, is_late = false;
    const bool is_whole = reader([&](const char* data, size_t size) {
      is_large = body.size() + size > limit;
      is_late = Clock::now() > deadline;
      if (is_large || is_late) return false;
      body.append(data, size);
      return true;
    });
    if (is_whole) return body;
    response.set_header("Connection", "close");
    if (is_large || response.status == 413) throw too_large;
    if (is_late) {
      throw Failure(408, "the body did not come within " + std::to_string(settings_.body_seconds) +
                             " seconds");
    }
    if (response.status == 415) {
      const auto encoding = in_quotes(request.get_header_value("Content-Encoding"));
      throw Failure(415, "Content-Encoding " + encoding +
                             " is not known here; send the body as it is");
    }
    throw Failure(400, "the body is cut short, or is not what Content-Encoding says");
  }

  void infer(const httplib::Request& request, httplib::Response& response,
             const std::string& body) {
    const auto started = Clock::now();
    if (draining_) throw Failure(503, "the server is stopping");
    std::optional<std::string> head;
    if (request.has_header(kHeadLength)) head = request.get_header_value(kHeadLength);
    auto question = read_question(body, head, classifier_, settings_.limits);
    const auto timeout = std::chrono::duration<double>(question.timeout_seconds);
    const auto deadline = started + std::chrono::duration_cast<Clock::duration>(timeout);
    const auto answers = queue_.answer(question.rows, deadline);
    auto reply = render(question, answers, classifier_, settings_.model);
    response.status = 200;
    if (reply.head) response.set_header(kHeadLength, std::to_string(*reply.head));
    response.set_content(std::move(reply.body),
                         reply.head ? "application/octet-stream" : "application/json");
  }

  const Classifier& classifier_;
  const Settings settings_;
  Counter counter_;
  std::atomic<bool> draining_{false};
  Queue queue_;
};

// Answers of the HTTP library itself.
void complete_error(const httplib::Request& request, httplib::Response& response) {
  if (!response.body.empty()) return;
  const std::map<int, std::string> words = {
      {400, "the request is not HTTP as this server understands it"},
      {404, "there is nothing at " + in_quotes(request.path)},
      {413, "the body is too large"},
      {414, "the URL is too long"},
  };
  const auto found = words.find(response.status);
  set_failure(response, response.status,
              found == words.end() ? "the request cannot be answered" : found->second);
}

void route(httplib::Server& server, Service& service) {
  const auto get = [&](const httplib::Request& request, httplib::Response& response) {
    service.get(request, response);
  };
  const auto other = [&](const httplib::Request& request, httplib::Response& response,
                         const httplib::ContentReader& reader) {
    reader([](const char*, size_t) { return true; });
    service.other(request, response);
  };
  server.Get(".*", get);
  server.Post(".*", [&](const httplib::Request& request, httplib::Response& response,
                        const httplib::ContentReader& reader) {
    service.post(request, response, reader);
  });
  server.Put(".*", other);
  server.Patch(".*", other);
  server.Delete(".*", other);
  server.Options(".*", [&](const httplib::Request& request, httplib::Response& response) {
    service.other(request, response);
  });
  server.set_error_handler(complete_error);
}

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
  settings.host = arguments.text("host", "0.0.0.0");
  settings.port = static_cast<int>(arguments.number("port", 8000, 0, 65535));
  settings.connections = number("connections", 32, 1024);
  settings.queue_texts = number("queue-texts", 256, 1000000);
  settings.max_body_bytes = number("max-body-bytes", 1 << 20, 1L << 30);
  settings.body_seconds = arguments.number("body-seconds", 30, 1, 86400);
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

int serve(int argc, char** argv) {
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
  // Before there are threads: they take it over, and only sigwait below gets these signals.
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGTERM);
  sigaddset(&stops, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  signal(SIGPIPE, SIG_IGN);
  const auto classifier = Classifier::open(std::filesystem::u8path(arguments.needed("bundle")),
                                           arguments.text("variant"), engine_options(arguments));
  Service service(*classifier, settings);
  httplib::Server server;
  server.new_task_queue = [&] { return new httplib::ThreadPool(settings.connections); };
  server.set_payload_max_length(settings.max_body_bytes);
  server.set_keep_alive_max_count(1000000);
  server.set_keep_alive_timeout(kIdle);
  server.set_tcp_nodelay(true);
  // The library's default lets a second server share the port: each would get half the requests.
  server.set_socket_options([](int sock) {
    const int yes = 1;
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  route(server, service);
  int port = settings.port;
  if (port == 0) {
    port = server.bind_to_any_port(settings.host);
  } else if (!server.bind_to_port(settings.host, port)) {
    port = -1;
  }
  if (port < 0) {
    throw UserError("cannot listen on " + settings.host + " port " + std::to_string(settings.port) +
                    ": choose another with --host and --port");
  }
  std::cout << "Serving " << settings.model << " (" << classifier->variant().name << ") on http://"
            << settings.host << ':' << port << std::endl;
  std::thread listener([&] { server.listen_after_bind(); });
  int got = 0;
  sigwait(&stops, &got);
  std::cout << "Stopping: what was taken is answered first" << std::endl;
  service.drain();
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server.stop();
  listener.join();
  return 0;
}

}  // namespace
}  // namespace fleetbert

int main(int argc, char** argv) { return fleetbert::run_program(fleetbert::serve, argc, argv); }

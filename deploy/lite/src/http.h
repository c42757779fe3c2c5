// HTTP/1.1 on sockets, by the strict parser of Boost.Beast.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fleetbert {

struct HttpRequest {
  std::string method;
  std::string path;                           // decoded, without a query
  std::map<std::string, std::string> fields;  // by lower-case name; of several of a name, all
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> fields;
};

struct HttpLimits {
  size_t body_bytes = 0;
  long body_seconds = 0;  // until a request's body is there, and until an answer is read
  size_t threads = 0;     // that answer
};

// A connection costs a thread only while a request of its own is answered: one thread reads and
// writes all of them.
class HttpServer {
 public:
  struct Calls {
    std::function<HttpResponse(const HttpRequest&)> answer;
    std::function<bool(const HttpRequest&)> is_quick;  // answered between others' bytes
    std::function<HttpResponse(int status, const std::string& message)> refuse;
  };

  HttpServer(const HttpLimits& limits, Calls calls);
  ~HttpServer();

  // Returns the port, which is a free one for 0; -1 where it cannot be had.
  int bind(const std::string& host, int port);

  // Serves until SIGTERM or SIGINT, then calls `on_stop`, answers what was taken, and returns.
  void run(const std::function<void()>& on_stop);

 private:
  class Sockets;
  std::unique_ptr<Sockets> sockets_;
};

}  // namespace fleetbert

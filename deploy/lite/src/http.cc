#include "http.h"

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
#include <optional>
#include <set>

namespace fleetbert {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kHeadBytes = 16 << 10;      // of a request line and its header fields
constexpr size_t kMostOpen = 1000;           // connections; more wait
constexpr seconds kIdle{5};                  // that a connection may be silent, or a head take
constexpr seconds kGoodbye{1};               // for a client to read the last answer
constexpr milliseconds kAcceptPause{100};    // where a connection cannot be taken

using Parser = http::request_parser<http::string_body>;

bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

// The path of a request's target, which may be a whole URL.
std::string path_of(std::string target) {
  const auto scheme = target.find("://");
  if (target.compare(0, 1, "/") != 0 && scheme != std::string::npos) {
    const auto start = target.find('/', scheme + 3);
    target = start == std::string::npos ? "/" : target.substr(start);
  }
  target.resize(std::min(target.size(), target.find_first_of("?#")));
  std::string path;
  for (size_t at = 0; at < target.size(); ++at) {
    if (target[at] == '%' && at + 2 < target.size() && is_hex(target[at + 1]) &&
        is_hex(target[at + 2])) {
      path += static_cast<char>(std::stoi(target.substr(at + 1, 2), nullptr, 16));
      at += 2;
    } else {
      path += target[at];
    }
  }
  return path;
}

HttpRequest request_of(const Parser::value_type& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.path = path_of(std::string(message.target()));
  for (const auto& field : message) {
    auto name = std::string(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    auto& value = request.fields[name];
    value += (value.empty() ? "" : ",") + std::string(field.value());
  }
  return request;
}

// What two programs in a row may understand in two ways, and so take a part of one request for
// another (RFC 9112, 6.3 and 11.2); empty if there is no such thing. The parser lets some of it
// pass.
std::string doubt_of(const HttpRequest& request, bool is_chunked) {
  const auto length = request.fields.find("content-length");
  const auto encoding = request.fields.find("transfer-encoding");
  const bool has_length = length != request.fields.end();
  const bool has_encoding = encoding != request.fields.end();
  if (has_length && has_encoding) return "Content-Length beside Transfer-Encoding";
  if (has_length && length->second.find(',') != std::string::npos) return "several Content-Length";
  if (has_encoding && !(is_chunked && beast::iequals(encoding->second, "chunked"))) {
    return "a Transfer-Encoding other than chunked";
  }
  return "";
}

}  // namespace

class HttpServer::Sockets {
 public:
  Sockets(const HttpLimits& limits, Calls calls)
      : limits_(limits), calls_(std::move(calls)), acceptor_(io_), pause_(io_),
        stops_(io_, SIGTERM, SIGINT) {}

  int bind(const std::string& host, int port) {
    error_code error;
    const auto found = tcp::resolver(io_).resolve(host, std::to_string(port),
                                                  tcp::resolver::passive, error);
    if (error) return -1;
    const auto endpoint = found.begin()->endpoint();
    if (acceptor_.open(endpoint.protocol(), error)) return -1;
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (acceptor_.bind(endpoint, error)) return -1;
    if (acceptor_.listen(asio::socket_base::max_listen_connections, error)) return -1;
    return acceptor_.local_endpoint().port();
  }

  void run(const std::function<void()>& on_stop) {
    asio::thread_pool pool(limits_.threads);
    pool_ = &pool;
    stops_.async_wait([&](error_code, int) {
      on_stop();
      stop();
    });
    accept();
    io_.run();
  }

 private:
  class Connection;

  void accept();
  void accept_later();
  void stop();

  const HttpLimits limits_;
  const Calls calls_;
  std::set<Connection*> open_;
  bool is_stopping_ = false;
  asio::thread_pool* pool_ = nullptr;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  asio::signal_set stops_;  // from now on they do not end the process by themselves
};

// One after the other its requests are read and answered. What it waits for keeps it alive.
class HttpServer::Sockets::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Sockets& server, tcp::socket socket)
      : server_(server), socket_(std::move(socket)), timer_(server.io_) {
    server_.open_.insert(this);
  }
  ~Connection() { server_.open_.erase(this); }

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    read_head();
  }

  // Ends it if no request has begun.
  void end_if_idle() {
    if (is_idle()) close();
  }

 private:
  bool is_idle() const {
    return is_in_head_ && !parser_->got_some() && buffer_.size() == 0;
  }

  void close() {
    error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
  }

  // What is waited for next fails, and `is_late_` says so, unless it is there by then.
  void wait_for(std::chrono::steady_clock::duration time) {
    is_late_ = false;
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this(), turn = ++turn_](error_code error) {
      if (error || turn != self->turn_) return;
      self->is_late_ = true;
      error_code ignored;
      self->socket_.cancel(ignored);
    });
  }

  void came() {
    ++turn_;
    timer_.cancel();
  }

  void read_head() {
    request_ = {};
    parser_.emplace();
    parser_->header_limit(kHeadBytes);
    parser_->body_limit(server_.limits_.body_bytes);
    is_in_head_ = true;
    wait_for(kIdle);
    http::async_read_header(socket_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, size_t) {
                              self->came();
                              error ? self->fail(error) : self->take_head();
                            });
  }

  void take_head() {
    is_in_head_ = false;
    request_ = request_of(parser_->get());  // before trailers become fields as well
    const auto doubt = doubt_of(request_, parser_->chunked());
    if (!doubt.empty()) return refuse(400, "the request has " + doubt);
    const auto expect = request_.fields.find("expect");
    const bool is_asked = expect != request_.fields.end() && !parser_->is_done() &&
                          beast::iequals(expect->second, "100-continue");
    if (!is_asked || buffer_.size() > 0) return read_body();
    static const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(go_on),
                      [self = shared_from_this()](error_code error, size_t) {
                        if (!error) self->read_body();
                      });
  }

  void read_body() {
    wait_for(seconds(server_.limits_.body_seconds));
    http::async_read(socket_, buffer_, *parser_,
                     [self = shared_from_this()](error_code error, size_t) {
                       self->came();
                       error ? self->fail(error) : self->take_body();
                     });
  }

  void take_body() {
    request_.body = std::move(parser_->get().body());
    keeps_ = parser_->keep_alive();
    if (server_.calls_.is_quick(request_)) return respond(server_.calls_.answer(request_));
    // While a thread has it, nothing else keeps the loop from ending.
    asio::post(*server_.pool_, [self = shared_from_this(),
                                work = asio::make_work_guard(server_.io_)]() mutable {
      auto response = self->server_.calls_.answer(self->request_);
      auto& io = self->server_.io_;
      asio::post(io, [self = std::move(self), response = std::move(response)]() mutable {
        self->respond(std::move(response));
      });
    });
  }

  // A request that did not come whole.
  void fail(error_code error) {
    if (is_late_) {
      if (is_idle()) return close();
      const auto time = is_in_head_ ? kIdle : seconds(server_.limits_.body_seconds);
      return refuse(408, std::string("the request's ") + (is_in_head_ ? "head" : "body") +
                             " did not come within " + std::to_string(time.count()) + " seconds");
    }
    static const auto& of_http = make_error_code(http::error::bad_method).category();
    if (error == http::error::end_of_stream || error.category() != of_http) return close();
    if (error == http::error::header_limit) {
      return refuse(431, "the headers have more than " + std::to_string(kHeadBytes) + " bytes");
    }
    if (error == http::error::body_limit) {
      return refuse(413, "the body is larger than the " +
                             std::to_string(server_.limits_.body_bytes) +
                             " bytes that this server takes");
    }
    refuse(400, "this is not HTTP: " + error.message());
  }

  // What follows on the connection cannot be known: this answer is the last.
  void refuse(int status, const std::string& message) {
    keeps_ = false;
    respond(server_.calls_.refuse(status, message));
  }

  void respond(HttpResponse given) {
    keeps_ = keeps_ && !server_.is_stopping_;
    response_ = {};
    response_.result(static_cast<unsigned>(given.status));
    response_.keep_alive(keeps_);
    if (keeps_ && parser_->get().version() == 10) response_.set("Connection", "keep-alive");
    response_.set("Content-Type", given.type);
    for (const auto& [name, value] : given.fields) response_.set(name, value);
    response_.content_length(given.body.size());
    if (request_.method != "HEAD") response_.body() = std::move(given.body);
    wait_for(seconds(server_.limits_.body_seconds));
    http::async_write(socket_, response_, [self = shared_from_this()](error_code error, size_t) {
      self->came();
      if (error) return self->close();
      self->keeps_ ? self->read_head() : self->end();
    });
  }

  // Reads what the client still sends, or the system would take the last answer from it.
  void end() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    wait_for(kGoodbye);
    pass_over();
  }

  void pass_over() {
    socket_.async_read_some(asio::buffer(passed_),
                            [self = shared_from_this()](error_code error, size_t) {
                              error || self->is_late_ ? self->close() : self->pass_over();
                            });
  }

  Sockets& server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest request_;
  http::response<http::string_body> response_;
  std::array<char, 4096> passed_{};
  bool is_in_head_ = false, is_late_ = false, keeps_ = false;
  size_t turn_ = 0;
};

void HttpServer::Sockets::accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (is_stopping_) return;
    if (!error) std::make_shared<Connection>(*this, std::move(socket))->start();
    error || open_.size() >= kMostOpen ? accept_later() : accept();
  });
}

void HttpServer::Sockets::accept_later() {
  pause_.expires_after(kAcceptPause);
  pause_.async_wait([this](error_code) {
    if (is_stopping_) return;
    open_.size() < kMostOpen ? accept() : accept_later();
  });
}

void HttpServer::Sockets::stop() {
  is_stopping_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
  for (auto* connection : open_) connection->end_if_idle();
}

HttpServer::HttpServer(const HttpLimits& limits, Calls calls)
    : sockets_(std::make_unique<Sockets>(limits, std::move(calls))) {}
HttpServer::~HttpServer() = default;
int HttpServer::bind(const std::string& host, int port) { return sockets_->bind(host, port); }
void HttpServer::run(const std::function<void()>& on_stop) { sockets_->run(on_stop); }

}  // namespace fleetbert

// SPDX-License-Identifier: Apache-2.0
// One HTTP connection on the daemon's port. It answers one request, or becomes the WebSocket of an
// agent, of a standing agent, or of a status page. I/O thread only.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/http/exchange.h"
#include "rendezvous/security/proof.h"
#include "rendezvous/security/wire.h"
#include "rendezvous/wire/frame_stream.h"

namespace ddprun::rendezvous {

inline constexpr char kHealthPath[] = "/healthz";  // probe: the daemon runs
inline constexpr char kReadyPath[] = "/readyz";    // probe: it serves new agents
inline constexpr char kStatusPath[] = "/v1/status";
inline constexpr char kMetricsPath[] = "/metrics";
inline constexpr char kJobsPath[] = "/v1/jobs";              // the jobs' status
inline constexpr char kRootPath[] = "/";                     // the status page
inline constexpr char kWatchPath[] = "/v1/watch";            // the status page's WebSocket
inline constexpr char kServiceName[] = "ddprun-rendezvous";  // in kHealthPath's answer

// Returns a target without its query: a scraper or a browser may add one, and the pages above have
// none.
inline std::string_view path_of(std::string_view target) {
  return target.substr(0, target.find('?'));
}

// Its operations own it. It ends by itself within two `timeout`s.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  struct Page {
    std::string content_type;
    std::string body;
    unsigned status = 200;
    std::string policy{};  // Content-Security-Policy of a page for browsers; else empty
    std::shared_ptr<const void> place{};  // kept until the page is sent
  };
  struct Request {
    std::string_view method, target, body;
    int socket = -1;            // the connection's
    std::string_view accept{};  // the header; may be empty
  };
  using Answer = std::function<void(std::optional<Page>)>;  // nullopt: 404
  enum class Peer {
    kAgent,    // /v1/agent
    kNode,     // gangs::kNodePath
    kWatcher,  // kWatchPath; admitted like a request for a page
  };
  struct Options {
    std::chrono::milliseconds timeout{10'000};  // of the request, and of the answer
    membership::FrameStream::Limits frames;
    std::optional<uid_t> only_user{};              // others but root get only probes over loopback
    security::TlsContext tls;                      // clients without TLS get only probes; null: off
    bool is_tls = false;                           // the connection begins with TLS
    std::shared_ptr<const Secret> token;           // an upgrade needs its proof; null: none needed
    std::shared_ptr<security::HttpDoor> door;      // pages but probes need its proof; null: none
    std::shared_ptr<const Secret> scrape_token{};  // with door: a bearer token to GET pages
    // On a standby returns the leader's HOST:PORT, or "" if not known; else nullopt. May be empty:
    // never a standby. A standby answers all but probes, kStatusPath and kMetricsPath with 503.
    std::function<std::optional<std::string>()> stands_by;
    bool takes_gangs = false;    // serves the path of Peer::kNode and the queue's pages
    bool takes_uploads = false;  // without a token: takes bodies as large as a gang
    // Calls `answer` once, at once or later from the I/O context.
    std::function<void(const Request& request, Answer answer)> page;
    // One of these two is called, once. `upgraded` gets the stream, which isn't started and isn't
    // used by the session any more. The peer got the challenge of `proof`; that is null without a
    // token, and for Peer::kWatcher.
    std::function<void(Peer, std::shared_ptr<membership::FrameStream>,
                       std::unique_ptr<security::RendezvousProof> proof)>
        upgraded;
    std::function<void()> ended;
  };

  HttpSession(security::Wire wire, Options options);

  void start();
  void stop();  // closes the connection; no call follows

 private:
  void arm_timer(const char* awaited);
  void read();
  http::ServerExchange::Limit body_limit();
  void broke(const boost::system::error_code& error);
  bool is_for_queue() const;
  void answer();
  void answer_page(std::string_view target);
  void answer_watcher();
  const char* refusal_of_browser(std::optional<Peer> peer);
  std::string refusal_of_user(std::string_view path);
  bool may_read(std::string_view target);
  bool is_admitted(std::string_view target);
  void admit(std::string_view target);
  void respond(Page page);
  void tell(unsigned status, const std::string& line) {
    respond({"text/plain", line + "\n", status});
  }
  void upgrade(Peer peer);
  void finish();

  Options options_;
  http::ServerExchange exchange_;
  boost::asio::steady_timer timer_;
  std::string peer_;                                 // HOST:PORT
  const char* awaited_ = "";                         // timer_ waits for this
  http::Fields fields_;                              // the answer's
  std::shared_ptr<const void> place_;                // the page's
  std::shared_ptr<membership::FrameStream> frames_;  // shared with its handshake
  std::unique_ptr<security::RendezvousProof> proof_;
  security::HttpDoor::Verdict admission_;
};

}  // namespace ddprun::rendezvous

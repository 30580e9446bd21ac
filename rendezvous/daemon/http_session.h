// SPDX-License-Identifier: Apache-2.0
// One HTTP connection on the daemon's port. It answers one request, or becomes the WebSocket of an
// agent, of a standing agent, or of a status page. io thread only.
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

inline constexpr char kHealthPath[] = "/healthz";  // probes: it runs,
inline constexpr char kReadyPath[] = "/readyz";    // and whoever joins is served
inline constexpr char kStatusPath[] = "/v1/status";
inline constexpr char kMetricsPath[] = "/metrics";
inline constexpr char kJobsPath[] = "/v1/jobs";              // how each job stands
inline constexpr char kRootPath[] = "/";                     // the status page,
inline constexpr char kWatchPath[] = "/v1/watch";            // and what it follows
inline constexpr char kServiceName[] = "ddprun-rendezvous";  // in it

// A target without its query, which a scraper or a browser may add: the pages above know none.
inline std::string_view path_of(std::string_view target) {
  return target.substr(0, target.find('?'));
}

// Owned by its operations; ends by itself within two `timeout`s.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  struct Page {
    std::string content_type;
    std::string body;
    unsigned status = 200;
    std::string policy{};  // Content-Security-Policy, of what a browser shows; empty: it is no such
    std::shared_ptr<const void> place{};  // kept until it is sent
  };
  struct Request {
    std::string_view method, target, body;
    int socket = -1;            // its connection's
    std::string_view accept{};  // the header; empty: none was sent
  };
  using Answer = std::function<void(std::optional<Page>)>;  // nullopt: 404
  enum class Peer {
    kAgent,    // /v1/agent
    kNode,     // gangs::kNodePath
    kWatcher,  // kWatchPath: admitted as one who asks for a page
  };
  struct Options {
    std::chrono::milliseconds timeout{10'000};  // for the request, and for the answer
    membership::FrameStream::Limits frames;
    std::optional<uid_t> only_user{};     // over loopback others than this one and root get probes
    security::TlsContext tls;             // without TLS only probes are answered; null: off
    bool is_tls = false;                  // the connection begins with TLS
    std::shared_ptr<const Secret> token;  // who upgrades is to prove it has it; null: needn't
    std::shared_ptr<security::HttpDoor> door;      // likewise who asks for a page but probes
    std::shared_ptr<const Secret> scrape_token{};  // with door: whoever shows it may GET pages
    // Set and not nullopt: it stands by. All but probes, kStatusPath and kMetricsPath is answered
    // with 503. The string: HOST:PORT of who leads, "" where that is not known.
    std::function<std::optional<std::string>()> stands_by;
    bool takes_gangs = false;  // else the path of Peer::kNode, and the queue's pages, aren't known
    bool takes_uploads = false;  // without a token: bodies as large as a gang, of anybody
    // Calls `answer` once, at once or later from the io context.
    std::function<void(const Request& request, Answer answer)> page;
    // One of the two, once. upgraded: its stream isn't started; `this` session is done with it. It
    // was told the challenge of `proof`, which is null without a token, and for Peer::kWatcher.
    std::function<void(HttpSession&, Peer, std::shared_ptr<membership::FrameStream>,
                       std::unique_ptr<security::RendezvousProof> proof)>
        upgraded;
    std::function<void(HttpSession&)> ended;
  };

  HttpSession(security::Wire wire, Options options);

  void start();
  void stop();  // closes; no call follows

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
  void respond(unsigned status, Page page);
  void upgrade(Peer peer);
  void finish();

  Options options_;
  http::ServerExchange exchange_;
  boost::asio::steady_timer timer_;
  std::string peer_;                                 // HOST:PORT
  const char* awaited_ = "";                         // until timer_
  http::Fields fields_;                              // of its answer
  std::shared_ptr<const void> place_;                // its page's
  std::shared_ptr<membership::FrameStream> frames_;  // second owner: its handshake
  std::unique_ptr<security::RendezvousProof> proof_;
  security::HttpDoor::Verdict admission_;
};

}  // namespace ddprun::rendezvous

// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <map>
#include <utility>

#include "common/check.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/daemon/daemon_status.h"
#include "rendezvous/daemon/gang_pages.h"
#include "rendezvous/daemon/http_session.h"
#include "rendezvous/daemon/leader_state.h"
#include "rendezvous/daemon/pending_handshakes.h"
#include "rendezvous/daemon/port_listener.h"
#include "rendezvous/daemon/stack_pages.h"
#include "rendezvous/daemon/watchers.h"
#include "rendezvous/gangs/gang_json.h"
#include "rendezvous/messages/stacks_target.h"
#include "rendezvous/security/proof.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::rendezvous {

using boost::asio::ip::tcp;

// The document at GET /, made of the files in page/, and its Content-Security-Policy. The policy
// allows the page's own script and style, and a connection to its own server.
extern const std::string_view kStatusPage, kStatusPagePolicy;

namespace {

constexpr char kJson[] = "application/json";
constexpr int kMostReservedDescriptors = 1024;

}  // namespace

// Agents wait here until they have proved the token. Before, no other part gets their messages.
class ProofGate : public std::enable_shared_from_this<ProofGate> {
 public:
  using Frames = std::shared_ptr<membership::FrameStream>;
  using Admitted = std::function<void(const Frames&)>;

  // `timeout` is the time from upgrade to proof.
  ProofGate(boost::asio::io_context& io, std::chrono::milliseconds timeout)
      : io_(io), timeout_(timeout) {}

  // Takes an upgraded stream that is not started, and that got the challenge of `proof`.
  void take(const Frames& frames, std::unique_ptr<security::RendezvousProof> proof,
            Newcomer newcomer, Admitted admitted) {
    auto& socket = frames->wire().socket();
    boost::system::error_code gone;
    socket.remote_endpoint(gone);
    if (gone || is_stopped_) return;
    const std::uint64_t number = next_number_++;
    Waiting& waiting = waiting_[number];
    waiting.frames = frames;
    waiting.proof = std::move(proof);
    waiting.admitted = std::move(admitted);
    waiting.peer = peer_text(socket.native_handle());
    waiting.timer = std::make_unique<boost::asio::steady_timer>(io_, timeout_);
    const auto self = shared_from_this();
    newcomer.ended_by([self, number](const std::string& reason) {
      self->drop(number, concat("no proof of the token yet, and ", reason));
    });
    waiting.newcomer = std::move(newcomer);
    waiting.timer->async_wait([self, number](boost::system::error_code error) {
      if (error || !self->waiting_.contains(number)) return;
      self->drop(number, concat("no proof of the token in ", self->timeout_.count(), " ms"));
    });
    frames->limit_messages(security::kMaxProofBytes);
    membership::FrameStream::Handlers handlers;
    handlers.frame = [self, number](std::string_view frame) { self->received(number, frame); };
    handlers.ended = [self, number](const std::string& reason) {
      self->drop(number, concat("it gave no proof of the token (", reason, ")"));
    };
    frames->start(std::move(handlers));
  }

  void stop() {  // closes waiting connections; no call follows
    is_stopped_ = true;
    for (const auto& [number, waiting] : std::exchange(waiting_, {})) waiting.frames->close();
  }

  std::size_t num_waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    Frames frames;  // shared with its operations
    std::unique_ptr<security::RendezvousProof> proof;
    Newcomer newcomer;
    std::string peer;  // ADDRESS:PORT
    Admitted admitted;
    std::unique_ptr<boost::asio::steady_timer> timer;
  };
  static constexpr std::chrono::milliseconds kFlushLimit{1'000};  // to send a refusal

  void received(std::uint64_t number, std::string_view frame) {
    const auto found = waiting_.find(number);
    if (found == waiting_.end()) return;
    const auto verdict = found->second.proof->check(frame);
    if (!verdict.admitted) return drop(number, verdict.reason, verdict.reply);
    const Waiting admitted = std::move(waiting_.extract(found).mapped());
    admitted.frames->send(verdict.reply);
    admitted.frames->lift_limit();
    admitted.admitted(admitted.frames);
  }

  void drop(std::uint64_t number, const std::string& reason, const std::string& reply = "") {
    const auto dropped = waiting_.extract(number);
    if (dropped.empty()) return;
    const Waiting& waiting = dropped.mapped();
    log_about_peer(LogLevel::kWarning, "closed the connection of agent ", waiting.peer, ": ",
                   reason);
    if (!reply.empty()) waiting.frames->send(reply);
    waiting.frames->close_when_sent(kFlushLimit);
  }

  boost::asio::io_context& io_;
  const std::chrono::milliseconds timeout_;
  std::map<std::uint64_t, Waiting> waiting_;  // oldest first
  std::uint64_t next_number_ = 0;
  bool is_stopped_ = false;
};

// Connects the parts. They call back here until stop().
class Daemon::Impl {
 public:
  Impl(boost::asio::io_context& io, DaemonOptions options)
      : options_(std::move(options)),
        security_(static_cast<const PortSecurity&>(options_)),
        io_(io),
        waiting_pages_(options_.waiting_pages),
        watchers_(std::make_shared<Watchers>(io, options_.watchers, watched())),
        stacks_(std::make_shared<StackPages>(io, asked_for_stacks())) {}

  void start(std::vector<UniqueFd> listeners, std::optional<KeptJobs> kept) {
    DDPRUN_CHECK(!listeners.empty());
    port_ = local_address(listeners.front().get()).port();
    for (const UniqueFd& listener : listeners) {
      const SocketAddress address = local_address(listener.get());
      addresses_.push_back(address.text());
      own_.listens_at(address);
      if (!address.is_loopback() && beyond_loopback_.empty()) beyond_loopback_ = address.text();
    }
    if (!options_.stands_by) begin(std::move(kept));
    open_port(std::move(listeners));
  }

  bool leads() const { return jobs_ != nullptr; }
  LeaderState& led() const {
    DDPRUN_CHECK(leads());
    return *jobs_;
  }

  void lead(KeptJobs kept) {
    DDPRUN_CHECK(options_.stands_by && !leads());
    begin(std::move(kept));
  }

  void stand_by(const std::string& leader) {
    DDPRUN_CHECK(options_.stands_by);
    leader_ = leader;
    stacks_->stop();
    watchers_->end_all(
        concat("this ddprund stands by", leader_.empty() ? "" : concat("; ", leader_, " leads")));
    jobs_.reset();
    stores_.reset();
  }

  void note_etcd(const std::string& trouble) { etcd_trouble_ = trouble; }

  void stop() {
    newcomers_->stop();
    listener_->stop();
    turns_->stop();
    for (const auto& [key, kept] : std::exchange(sessions_, {})) kept.session->stop();
    if (gate_) gate_->stop();
    watchers_->stop();
    stacks_->stop();
    jobs_.reset();
    stores_.reset();
  }

  std::uint16_t port() const { return port_; }
  OwnConnections& own() { return own_; }

  void set_security(PortSecurity security) {
    security_ = std::move(security);
    if (security_.token) door_ = std::make_shared<security::HttpDoor>(security_.token);
  }

  // `num_asking` is the number of sessions that ask for this status.
  DaemonStatus status(std::size_t num_asking) const {
    DaemonStatus status;
    status.pid = ::getpid();
    status.uptime = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_);
    status.time = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    status.embedded = options_.embedded;
    if (options_.stands_by) status.role = RoleStatus{leads(), leader_, etcd_trouble_};
    status.addresses = addresses_;
    status.token = security_.token != nullptr;
    status.tls = security_.tls != nullptr;
    status.watch_output = options_.watch_output;
    status.keep_finished = options_.keep_finished;
    status.newcomers = {newcomers_->size() - num_asking, options_.max_handshakes};
    status.silent = {listener_->num_silent()};
    status.requests = {sessions_.size() - num_asking};
    status.proofs = {gate_ ? gate_->num_waiting() : 0};
    status.limits = options_.limits;
    status.finished_jobs = {0, membership::FinishedJobs::kMost};
    status.agents = {0, options_.limits.connections};
    if (leads()) jobs_->add_to(status);
    return status;
  }

  std::string metrics_text(metrics::Format format) {
    if (leads()) jobs_->count_seconds();
    DaemonMetrics all;
    all.status = status(1);
    all.counts = counts_;
    all.process = metrics::own_use();
    if (leads()) jobs_->add_to(all);
    return metrics_to_text(all, format);
  }

 private:
  void begin(std::optional<KeptJobs> kept) {
    stores_.emplace(io_, options_.store, options_.job_limits, options_.limits, only_user());
    jobs_ = std::make_unique<LeaderState>(io_, options_, *stores_, counts_, std::move(kept),
                                          gang_options(), [this](const auto& said) {
                                            watchers_->said(said.connection, said.tail);
                                            stacks_->said(said.connection, said.tail);
                                          });
  }

  // The sources of the state of status pages.
  Watchers::Source watched() {
    Watchers::Source source;
    source.status = [this] {
      const DaemonStatus now = status(0);
      return Watchers::Status{status_to_json(now), watch_key(now)};
    };
    source.jobs = [this](std::function<void(const WatchedJobs&)> done) {
      if (!leads()) return;
      jobs_->watched([this, done = std::move(done)](WatchedJobs jobs) {
        jobs_->hub().when_kept([done, jobs = std::move(jobs)] { done(jobs); });
      });
    };
    source.tail = [this](const Tails::Rank& rank, std::uint64_t request) {
      if (!leads()) return membership::TailRoute{std::nullopt, "this ddprund stands by"};
      if (!options_.watch_output) {
        return membership::TailRoute{
            std::nullopt, "switched off for all jobs: this ddprund runs with --watch-output=off"};
      }
      return jobs_->ask_for_tails(rank.run_id, {{rank.global_rank}, request}).front();
    };
    return source;
  }

  // The options' functions are called only while it leads.
  StackPages::Options asked_for_stacks() {
    StackPages::Options asked;
    asked.ask = [this](const std::string& run_id, const membership::TailQuestion& question) {
      return jobs_->ask_for_tails(run_id, question);
    };
    asked.num_ranks = [this](const std::string& run_id) {
      return jobs_->hub().table().num_ranks(run_id);
    };
    return asked;
  }

  std::optional<GangHub::Options> gang_options() const {
    if (!options_.has_gangs) return std::nullopt;
    GangHub::Options gangs;
    gangs.queue.keep_finished = options_.keep_finished;
    gangs.hello_timeout = options_.handshake_timeout;
    gangs.asks_kernel = !security_.token;
    if (!security_.token && !beyond_loopback_.empty()) {
      gangs.refusal = concat(
          "this ddprund takes no standing agents and no gangs: it listens at ", beyond_loopback_,
          " without a token, so anybody could run commands on the nodes; give it --token-file");
    }
    return gangs;
  }

  void upgraded(HttpSession::Peer peer, const std::shared_ptr<membership::FrameStream>& frames,
                std::unique_ptr<security::RendezvousProof> proof, Newcomer newcomer) {
    const auto admit = [this, peer](const auto& known, Newcomer place) {
      ++counts_.upgrades[static_cast<std::size_t>(peer)];
      if (!leads()) return known->close();  // a standby by now
      switch (peer) {
        case HttpSession::Peer::kAgent:
          return jobs_->hub().take(known, std::move(place));
        case HttpSession::Peer::kNode:
          if (GangHub* hub = jobs_->gang_hub()) return hub->take(known, std::move(place));
          return known->close();
        case HttpSession::Peer::kWatcher:
          return watchers_->take(known);
      }
    };
    if (!proof) return admit(frames, std::move(newcomer));
    const ProofGate::Admitted admitted = [admit](const auto& known) { admit(known, Newcomer()); };
    gate_->take(frames, std::move(proof), std::move(newcomer), admitted);
  }

  void open_port(std::vector<UniqueFd> listeners) {
    // A part of the descriptors is reserved for agents and files.
    const auto limit = static_cast<int>(std::min<std::size_t>(store::raise_file_limit(), 1 << 30));
    const int reserve = std::min(limit / 4, kMostReservedDescriptors);
    newcomers_ = std::make_shared<PendingHandshakes>(
        io_, PendingHandshakes::Options{.max = options_.max_handshakes,
                                        .time_limit = options_.newcomer_timeout,
                                        .max_descriptor = limit - reserve / 4});

    if (security_.token) gate_ = std::make_shared<ProofGate>(io_, options_.handshake_timeout);
    set_security(security_);

    TlsAdmission::Options turns;
    turns.turn = options_.tls_turn;
    turns.begin = [this](UniqueFd connection, Newcomer newcomer) {
      take_http(std::move(connection), std::move(newcomer), true);
    };
    turns_ = std::make_shared<TlsAdmission>(io_, newcomers_, std::move(turns));

    PortListener::Options port;
    port.is_closed = security_.token || security_.tls;
    port.first_byte_timeout = options_.handshake_timeout;
    port.max_store_descriptor = limit - reserve;
    const auto store = [this](UniqueFd connection, const Newcomer&) {
      ++counts_.store_connections;
      if (leads()) stores_->adopt(std::move(connection));
    };
    const auto http = [this](UniqueFd connection, Newcomer newcomer) {
      take_http(std::move(connection), std::move(newcomer), false);
    };
    const PortListener::Take tls = [this](UniqueFd connection, Newcomer newcomer) {
      turns_->take(std::move(connection), std::move(newcomer));
    };
    listener_ = std::make_shared<PortListener>(io_, std::move(port), newcomers_, store, http,
                                               security_.tls ? tls : PortListener::Take());
    listener_->start(std::move(listeners));
  }

  // Returns the only user, beside root, that is served over loopback; nullopt: all are.
  std::optional<uid_t> only_user() const {
    const bool is_guarded = options_.token || options_.tls;
    return options_.embedded && !is_guarded ? std::optional(::geteuid()) : std::nullopt;
  }

  struct Session {
    std::shared_ptr<HttpSession> session;  // shared with its operations
    Newcomer newcomer;
  };

  void take_http(UniqueFd fd, Newcomer newcomer, bool is_tls) {
    const std::uint64_t number = next_session_++;
    std::shared_ptr<HttpSession> session;
    try {
      const bool v6 = local_address(fd.get()).storage.ss_family == AF_INET6;
      tcp::socket socket(io_, v6 ? tcp::v6() : tcp::v4(), fd.get());
      fd.release();
      socket.set_option(tcp::no_delay(true));
      HttpSession::Options options = session_options(number, is_tls);
      if (!is_tls && own_.take(socket.native_handle())) options.tls = nullptr;
      session = std::make_shared<HttpSession>(std::move(socket), std::move(options));
    } catch (const std::exception& error) {
      log_debug("a connection ended before its request: ", error.what());
      return;
    }
    newcomer.ended_by([this, number](const std::string&) {
      const auto late = sessions_.extract(number);
      if (!late.empty()) late.mapped().session->stop();
    });
    sessions_[number] = {session, std::move(newcomer)};
    session->start();
  }

  HttpSession::Options session_options(std::uint64_t number, bool is_tls) {
    HttpSession::Options options;
    options.timeout = options_.handshake_timeout;
    options.frames.max_message_bytes = options_.max_message_bytes;
    options.stands_by = [this]() -> std::optional<std::string> {
      if (leads()) return std::nullopt;
      return leader_;
    };
    options.page = [this](const HttpSession::Request& request, HttpSession::Answer answer) {
      page(request, std::move(answer));
    };
    options.ended = [this, number] { sessions_.erase(number); };
    options.only_user = only_user();
    options.tls = security_.tls;
    options.is_tls = is_tls;
    options.token = security_.token;
    options.door = door_;
    options.scrape_token = security_.scrape_token;
    options.takes_gangs = options_.has_gangs;
    options.takes_uploads = options_.has_gangs && !security_.token && beyond_loopback_.empty();
    options.upgraded = [this, number](HttpSession::Peer peer, const auto& frames, auto proof) {
      upgraded(peer, frames, std::move(proof),
               std::move(sessions_.extract(number).mapped().newcomer));
    };
    return options;
  }

  void page(const HttpSession::Request& request, HttpSession::Answer answer) {
    const std::string_view path = path_of(request.target);
    ++counts_.pages;
    if (path == kHealthPath) {
      // With a token the mark isn't shown, since it would help to guess the job's name.
      const bool has_mark = !options_.embedded_for.empty() && !security_.token;
      const std::string mark =
          has_mark ? concat("\",\"job_mark\":\"", job_mark(options_.embedded_for)) : "";
      return answer(
          HttpSession::Page{kJson, concat("{\"service\":\"", kServiceName, "\",\"version\":\"",
                                          DDPRUN_VERSION, mark, "\"}\n")});
    }
    if (path == kReadyPath) {
      const std::string why = leads()                 ? jobs_->why_not_ready()
                              : etcd_trouble_.empty() ? "it stands by"
                                                      : "it stands by, and " + etcd_trouble_;
      const unsigned status = why.empty() ? 200 : 503;
      return answer(HttpSession::Page{
          "text/plain", why.empty() ? "ok\n" : concat("not ready: ", why, "\n"), status});
    }
    if (path == kRootPath) {
      return answer(HttpSession::Page{"text/html; charset=utf-8", std::string(kStatusPage), 200,
                                      std::string(kStatusPagePolicy)});
    }
    // This doesn't wait for the journal, since nothing follows from it.
    if (path == kStatusPath) return answer(HttpSession::Page{kJson, status_to_json(status(1))});
    if (path == kMetricsPath) {
      const metrics::Format format = metrics::choose_format(request.accept);
      return answer(HttpSession::Page{metrics::content_type(format), metrics_text(format)});
    }
    if (options_.has_gangs && gangs::is_gangs_target(request.target)) {
      if (jobs_ && jobs_->gangs() != nullptr) jobs_->gangs()->ask(request, std::move(answer));
      return;  // a standby by now: dropping the answer ends the session's wait
    }
    if (path == membership::kStacksPath) return stacks(request, std::move(answer));
    if (path != kJobsPath) return answer(std::nullopt);
    auto turn = waiting_pages_.admit(0);
    if (!turn) return answer(refused_page());
    jobs_->page().ask([this, answer = std::move(answer),
                       turn = std::move(turn)](const std::string& body) mutable {
      turn.reset();
      HttpSession::Page page{kJson, body};
      page.place = waiting_pages_.admit(body.size());
      if (!page.place) return answer(refused_page());
      // State that isn't kept yet must not be shown.
      jobs_->hub().when_kept([answer = std::move(answer), page = std::move(page)]() mutable {
        answer(std::move(page));
      });
    });
  }

  // Stacks show names of a program's functions and files. They follow the rule for its output.
  void stacks(const HttpSession::Request& request, HttpSession::Answer answer) {
    if (!leads()) return;  // a standby by now, as above
    if (!options_.watch_output) {
      return answer(
          HttpSession::Page{kJson,
                            "{\"problem\":\"switched off for all jobs: this ddprund runs with "
                            "--watch-output=off\"}\n"});
    }
    stacks_->ask(request.target,
                 [this, answer = std::move(answer)](std::optional<HttpSession::Page> page) {
                   page->place = waiting_pages_.admit(page->body.size());
                   answer(page->place ? std::move(*page) : refused_page());
                 });
  }

  HttpSession::Page refused_page() const {
    return {
        "text/plain",
        concat(waiting_pages_.num(), " requests wait already for their answers: ask again later\n"),
        503};
  }

  const DaemonOptions options_;
  PortSecurity security_;  // at first from options_
  boost::asio::io_context& io_;
  const Clock::time_point started_ = Clock::now();
  std::uint16_t port_ = 0;
  std::vector<std::string> addresses_;
  OwnConnections own_;
  std::string beyond_loopback_;  // one of the addresses beyond loopback; empty: none
  DaemonCounts counts_;
  std::string leader_;                            // while it stands by; empty: not known
  std::string etcd_trouble_;                      // empty: etcd answers, or isn't used
  std::optional<RoundStores> stores_;             // set while it leads
  std::unique_ptr<LeaderState> jobs_;             // set while it leads
  std::shared_ptr<security::HttpDoor> door_;      // shared with sessions; null: no token
  std::shared_ptr<ProofGate> gate_;               // shared with its waits; null: no token
  std::shared_ptr<PortListener> listener_;        // shared with its waits
  std::shared_ptr<TlsAdmission> turns_;           // shared with its waits
  std::shared_ptr<PendingHandshakes> newcomers_;  // shared with its members
  WaitingPages waiting_pages_;
  const std::shared_ptr<Watchers> watchers_;  // shared with its waits
  const std::shared_ptr<StackPages> stacks_;
  std::map<std::uint64_t, Session> sessions_;
  std::uint64_t next_session_ = 0;
};

Daemon::Daemon(boost::asio::io_context& io, std::vector<UniqueFd> listeners, DaemonOptions options,
               std::optional<KeptJobs> kept)
    : impl_(std::make_unique<Impl>(io, std::move(options))) {
  impl_->start(std::move(listeners), std::move(kept));
}

Daemon::~Daemon() { impl_->stop(); }

void Daemon::lead(KeptJobs kept) { impl_->lead(std::move(kept)); }

void Daemon::stand_by(const std::string& leader) { impl_->stand_by(leader); }
void Daemon::note_etcd(const std::string& trouble) { impl_->note_etcd(trouble); }

bool Daemon::leads() const { return impl_->leads(); }

std::uint16_t Daemon::port() const { return impl_->port(); }
bool Daemon::await_own(int socket) { return impl_->own().await(socket); }

std::vector<std::string> Daemon::live_jobs() const {
  return leads() ? impl_->led().live() : std::vector<std::string>();
}

std::string Daemon::journal_trouble() const {
  return leads() ? impl_->led().journal_trouble() : std::string();
}

void Daemon::set_security(PortSecurity security) { impl_->set_security(std::move(security)); }

void Daemon::when_idle(std::chrono::milliseconds timeout, Serve serve, std::function<void()> done) {
  impl_->led().when_idle(timeout, serve, std::move(done));
}

std::string Daemon::status_json() const { return status_to_json(impl_->status(0)); }

}  // namespace ddprun::rendezvous

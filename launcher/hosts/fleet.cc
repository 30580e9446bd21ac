// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/fleet.h"

#include <algorithm>
#include <utility>

#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/signal_names.h"

namespace ddprun::launcher {
namespace {

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

bool is_numeric(const std::string& host) {
  return host.find(':') != std::string::npos ||
         host.find_first_not_of("0123456789.") == std::string::npos;
}

constexpr int code_of(ExitCode code) { return static_cast<int>(code); }

}  // namespace

int job_exit_code(const std::vector<int>& codes) {
  int best = codes.empty() ? 0 : codes.front();
  for (const int code : codes) {
    if (code == 0) return 0;
    if (std::count(codes.begin(), codes.end(), code) > std::count(codes.begin(), codes.end(), best))
      best = code;
  }
  return best;
}

Fleet::Fleet(FleetOptions options)
    : options_(std::move(options)), nodes_(options_.nodes.size()), endpoint_(options_.endpoint) {}

std::vector<FleetAction> Fleet::step(const FleetEvent& event, Clock::time_point now) {
  if (finished_) return {};
  now_ = now;
  variants::visit([this](const auto& one) { on(one); }, event);
  if (!stop_by_ && !give_up_by_) {
    start_more();
    run_ready();
  }
  const bool all_known = std::none_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.state == State::kConnecting;
  });
  if (give_up_by_ && !stop_by_ && (all_known || *give_up_by_ <= now_)) give_up();
  finish_when_over();
  return std::exchange(out_, {});
}

std::optional<Clock::time_point> Fleet::next_deadline() const {
  if (finished_) return std::nullopt;
  std::optional<Clock::time_point> next = stop_by_;
  if (!stop_by_) keep_earlier(next, verdict_by_);
  if (!stop_by_) keep_earlier(next, give_up_by_);
  for (const Node& node : nodes_) {
    if (node.state == State::kConnecting) keep_earlier(next, node.reach_by);
  }
  return next;
}

void Fleet::on(const fleet_event::Begin& /*event*/) {}

void Fleet::on(const fleet_event::Hello& event) {
  Node& node = nodes_[event.node];
  if (node.state != State::kConnecting) return;
  const channel::Hello& hello = event.hello;
  if (hello.protocol != channel::kProtocol || hello.version != DDPRUN_VERSION) {
    return lose(event.node, code_of(ExitCode::kUsage),
                "ddprun there is version " + one_line(hello.version) + ", here " DDPRUN_VERSION);
  }
  node.hello = hello;
  node.state = State::kReady;
}

void Fleet::on(const fleet_event::Serving& event) {
  if (event.node == server_ && endpoint_.empty()) endpoint_ = event.endpoint;
}

void Fleet::on(const fleet_event::End& event) {
  Node& node = nodes_[event.node];
  if (node.state != State::kRunning) return;
  node.state = State::kEnded;
  node.end = event.end;
  node.ended_as = num_ended_++;
  if (stop_by_) return;
  if (event.end.by_job) {
    // Its rendezvous was there until all had heard of the end: who has not come yet never will.
    if (event.node == server_ && !verdict_by_) verdict_by_ = now_ + options_.stop_timeout;
    return;
  }
  if (event.end.was_killed) {
    act(fleet_action::Say{LogLevel::kWarning,
                          name(event.node) + ": its ddprun was ended by " +
                              signal_name(event.end.exit_code - exit_status_for_signal(0))});
  }
  // What its ddprun had to say of the reason was passed on.
  const bool says_why = !event.end.was_killed && event.end.exit_code != 0;
  fail_alone(event.node, says_why ? event.end.exit_code : code_of(ExitCode::kRetryable));
}

void Fleet::on(const fleet_event::Gone& event) {
  const State state = nodes_[event.node].state;
  if (state == State::kEnded || state == State::kLost) return;
  // A transport may hand on any status. Only before its agent's hello can it mean that another try
  // doesn't help.
  const bool was_there = state == State::kReady || state == State::kRunning;
  lose(event.node, was_there ? code_of(ExitCode::kRetryable) : event.code, event.text);
}

void Fleet::on(const fleet_event::Signalled& event) {
  constexpr int kEnough = 3;  // the agents kill their workers at the second one
  const int code = exit_status_for_signal(event.number);
  int number = event.number;
  if (!event.is_warning) {
    ++num_signals_;
    if (signal_code_ == 0) {
      signal_code_ = code;
    } else if (signal_code_ == code) {
      // Two of a kind that come at once over there would be one to the kernel.
      number = another_than(event.number);
    }
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state == State::kRunning) {
      act(fleet_action::Signal{static_cast<int>(i), number});
    }
  }
  if (event.is_warning) return;
  const bool nothing_runs = std::none_of(
      nodes_.begin(), nodes_.end(), [](const Node& node) { return node.state == State::kRunning; });
  if (num_signals_ == 1) {
    if (nothing_runs) {
      act(fleet_action::Say{LogLevel::kWarning,
                            "got " + signal_name(event.number) + " before all hosts were reached"});
    }
    stop(nothing_runs ? code : 0, "", 0);
  } else if (num_signals_ >= kEnough) {
    if (cause_ == 0) cause_ = signal_code_;
    close_all();
  }
}

int Fleet::another_than(int signal_number) const {
  for (const int other : options_.stop_signals) {
    if (other != signal_number) return other;
  }
  return signal_number;
}

void Fleet::on(const fleet_event::Tick& /*event*/) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state != State::kConnecting || nodes_[i].reach_by > now_) continue;
    lose(
        static_cast<int>(i), code_of(ExitCode::kRetryable),
        concat("no answer within ", options_.reach_timeout.count() / 1000.0, " s (--ssh-timeout)"));
  }
  if (stop_by_ && *stop_by_ <= now_) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].state != State::kRunning) continue;
      act(fleet_action::Say{LogLevel::kWarning, name(static_cast<int>(i)) +
                                                    ": its ddprun has not ended in time: left"});
    }
    if (cause_ == 0) cause_ = signal_code_ != 0 ? signal_code_ : code_of(ExitCode::kRetryable);
    close_all();
  } else if (verdict_by_ && *verdict_by_ <= now_ && !stop_by_) {
    stop(loss_code_, loss_reason_, options_.stop_signals.front());
  }
}

void Fleet::start_more() {
  const auto is_connecting = [](const Node& node) { return node.state == State::kConnecting; };
  auto under_way = std::count_if(nodes_.begin(), nodes_.end(), is_connecting);
  for (std::size_t i = 0; i < nodes_.size() && under_way < options_.fanout; ++i) {
    if (nodes_[i].state != State::kWaiting) continue;
    nodes_[i].state = State::kConnecting;
    nodes_[i].reach_by = now_ + options_.reach_timeout;
    ++under_way;
    act(fleet_action::Start{static_cast<int>(i)});
  }
}

// The first node that can still be had.
int Fleet::server() const {
  if (server_ >= 0) return server_;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state != State::kLost && nodes_[i].state != State::kEnded) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// The host at which `server` is reached by the others; nullopt: their hellos are needed to know.
std::optional<std::string> Fleet::serve_at(int server) const {
  const FleetNode& named = options_.nodes[server];
  const channel::Hello& hello = nodes_[server].hello;
  if (!named.is_here) return hello.reached_at.empty() ? named.address : hello.reached_at;
  if (nodes_.size() == 1) return "127.0.0.1";
  if (is_numeric(named.address) && !is_loopback(named.address)) return named.address;
  bool more_to_come = false;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (options_.nodes[i].is_here) continue;
    if (!nodes_[i].hello.came_from.empty()) return nodes_[i].hello.came_from;
    more_to_come = more_to_come || nodes_[i].state <= State::kConnecting;
  }
  if (more_to_come) return std::nullopt;
  return is_loopback(named.address) ? hello.host : named.address;
}

void Fleet::run_ready() {
  if (endpoint_.empty() && server_ < 0) {
    const int first = server();
    if (first < 0 || nodes_[first].state != State::kReady) return;
    const auto host = serve_at(first);
    if (!host) return;
    server_ = first;
    nodes_[first].state = State::kRunning;
    act(fleet_action::Run{first, *host, ""});
  }
  if (endpoint_.empty()) return;
  const auto endpoint = parse_endpoint(endpoint_, kDefaultRendezvousPort);
  for (std::size_t i = 0; i < nodes_.size() && !stop_by_; ++i) {
    Node& node = nodes_[i];
    if (node.state != State::kReady) continue;
    const bool is_elsewhere = !options_.nodes[i].is_here && !node.hello.reached_at.empty() &&
                              !is_loopback(node.hello.reached_at);
    if (options_.endpoint.empty() && endpoint && is_loopback(endpoint->host) && is_elsewhere) {
      return stop(code_of(ExitCode::kUsage),
                  concat(name(static_cast<int>(i)), " can't reach the rendezvous of ",
                         name(server_), ", which ssh reaches at ", endpoint->host,
                         ": say where the nodes meet (--rdzv-endpoint=HOST:PORT)"),
                  options_.stop_signals.front());
    }
    node.state = State::kRunning;
    act(fleet_action::Run{static_cast<int>(i), "", endpoint_});
  }
}

// Fewer nodes are left than the job needs, or the one that it can't be without.
bool Fleet::is_short() const {
  const auto is_well = [](const Node& node) {
    return node.state == State::kEnded ? node.end.by_job : node.state != State::kLost;
  };
  const auto left = std::count_if(nodes_.begin(), nodes_.end(), is_well);
  return left < options_.min_nodes || (server_ >= 0 && !is_well(nodes_[server_]));
}

void Fleet::lose(int index, int code, const std::string& text) {
  Node& node = nodes_[index];
  const bool had_job = node.state == State::kRunning;
  close(index);
  if (stop_by_) {
    if (!had_job) return;
    act(fleet_action::Say{LogLevel::kWarning, name(index) + ": " + text});
    return;
  }
  if (!is_short()) {
    act(fleet_action::Say{LogLevel::kWarning,
                          concat(name(index), ": ", text, "; the job goes on without it")});
    return;
  }
  const std::string loss = name(index) + ": " + text;
  if (!had_job) {
    missing_.push_back({name(index), loss});
    if (give_up_by_) return;
    give_up_by_ = now_ + options_.gather_time;
    missing_code_ = code;
    return;
  }
  act(fleet_action::Say{LogLevel::kError, loss});
  await_verdict(code, name(index) + ": " + text);
}

// Who mends one host wants to know of the others, too.
void Fleet::give_up() {
  constexpr std::size_t kMostNames = 20;
  std::string reason = missing_.front().loss;
  if (missing_.size() > 1) {
    std::string names = missing_.front().name;
    const std::size_t num_shown = std::min(missing_.size(), kMostNames);
    for (std::size_t i = 1; i < num_shown; ++i) names += ", " + missing_[i].name;
    if (num_shown < missing_.size()) {
      names += concat(" and ", missing_.size() - num_shown, " more");
    }
    reason = concat(missing_.size(), " hosts can't be had: ", names, "; ", reason);
  }
  stop(missing_code_, reason, options_.stop_signals.front());
}

// The rendezvous sees the loss, too, and says what becomes of the job.
void Fleet::await_verdict(int code, const std::string& reason) {
  if (verdict_by_) return;
  verdict_by_ = now_ + options_.verdict_patience;
  loss_code_ = code;
  loss_reason_ = reason;
}

// A node whose ddprun ended by itself, not with the job.
void Fleet::fail_alone(int index, int code) {
  if (!is_short()) {
    act(fleet_action::Say{LogLevel::kWarning,
                          concat(name(index), ": ended with ", nodes_[index].end.exit_code,
                                 "; the job goes on without it")});
  } else if (nodes_[index].end.was_killed) {
    await_verdict(code, name(index) + ": its ddprun was killed");
  } else {
    stop(code, concat(name(index), ": its ddprun ended with ", nodes_[index].end.exit_code),
         options_.stop_signals.front());
  }
}

// Those that have no job are closed, the others get the signal (0: have it) and end by themselves.
void Fleet::stop(int code, const std::string& reason, int signal_number) {
  if (stop_by_) return;
  cause_ = code;
  reason_ = reason;
  for (const Missing& each : missing_) {
    // The only one is the reason, which is said at the end.
    if (each.loss != reason) act(fleet_action::Say{LogLevel::kError, each.loss});
  }
  stop_by_ = now_ + options_.stop_timeout;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (nodes_[i].state == State::kRunning) {
      if (signal_number != 0) act(fleet_action::Signal{index, signal_number});
    } else if (nodes_[i].state != State::kEnded && nodes_[i].state != State::kLost) {
      close(index);
    }
  }
}

void Fleet::close(int index) {
  if (nodes_[index].state != State::kWaiting) act(fleet_action::Close{index});
  nodes_[index].state = State::kLost;
}

void Fleet::close_all() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state != State::kEnded && nodes_[i].state != State::kLost) {
      close(static_cast<int>(i));
    }
  }
}

void Fleet::finish_when_over() {
  for (const Node& node : nodes_) {
    if (node.state != State::kEnded && node.state != State::kLost) return;
  }
  finished_ = true;
  act(result());
}

fleet_action::Finish Fleet::result() const {
  std::vector<const Node*> ended;
  for (const Node& node : nodes_) {
    if (node.state == State::kEnded) ended.push_back(&node);
  }
  std::sort(ended.begin(), ended.end(),
            [](const Node* a, const Node* b) { return a->ended_as < b->ended_as; });
  std::vector<int> by_job;
  for (const Node* node : ended) {
    if (node->end.by_job) by_job.push_back(node->end.exit_code);
  }
  fleet_action::Finish finish;
  finish.exit_code = job_exit_code(by_job);
  if (!by_job.empty() && finish.exit_code == 0) return finish;
  // A node whose channel was cut ends by a signal, and says to the others that it got one.
  const bool only_cut = num_signals_ == 0 &&
                        finish.exit_code == exit_status_for_signal(options_.stop_signals.front());
  if (cause_ != 0) {
    finish.exit_code = cause_;
    finish.reason = reason_;
  } else if (loss_code_ != 0 && (by_job.empty() || only_cut)) {
    finish.exit_code = loss_code_;
    finish.reason = loss_reason_;
  } else {
    for (const Node* node : ended) {
      if (by_job.empty() && finish.exit_code == 0) finish.exit_code = node->end.exit_code;
      if (finish.last_words.empty() && node->end.exit_code == finish.exit_code) {
        finish.last_words = node->end.last_words;
      }
    }
  }
  return finish;
}

}  // namespace ddprun::launcher

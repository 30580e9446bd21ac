// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/fleet.h"

#include <utility>

#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/signal_names.h"
#include "common/text.h"

namespace ddprun::launcher {
namespace {

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

bool is_numeric(const std::string& host) {
  return host.find(':') != std::string::npos ||
         host.find_first_not_of("0123456789.") == std::string::npos;
}

// From a host that can't be had to giving up.
constexpr std::chrono::milliseconds kGatherTime{1'000};

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

Fleet::Fleet(FleetOptions options, FleetActions& actions)
    : options_(std::move(options)),
      actions_(actions),
      nodes_(options_.nodes.size()),
      endpoint_(options_.endpoint) {}

template <typename Event>
void Fleet::step(Clock::time_point now, Event event) {
  if (finished_) return;
  now_ = now;
  event();
  if (!stop_by_ && !give_up_by_) {
    start_more();
    run_ready();
  }
  const bool all_known = count(State::kConnecting) == 0;
  if (give_up_by_ && !stop_by_ && (all_known || *give_up_by_ <= now_)) give_up();
  if (count(State::kEnded) + count(State::kLost) == num_nodes()) finish();
  actions_.wake_at(next_deadline());
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

int Fleet::count(State state) const {
  return static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(),
                                        [=](const Node& node) { return node.state == state; }));
}

void Fleet::hello(int index, const channel::Hello& hello, Clock::time_point now) {
  step(now, [&] {
    Node& node = nodes_[index];
    if (node.state != State::kConnecting) return;
    if (hello.protocol != channel::kProtocol || hello.version != DDPRUN_VERSION) {
      return lose(index, code_of(ExitCode::kUsage),
                  "ddprun there is version " + one_line(hello.version) + ", here " DDPRUN_VERSION);
    }
    node.hello = hello;
    node.state = State::kReady;
  });
}

void Fleet::serving(int index, const std::string& endpoint, Clock::time_point now) {
  step(now, [&] {
    if (index == server_ && endpoint_.empty()) endpoint_ = endpoint;
  });
}

void Fleet::ended(int index, const channel::End& end, Clock::time_point now) {
  step(now, [&] {
    Node& node = nodes_[index];
    if (node.state != State::kRunning) return;
    node.state = State::kEnded;
    node.end = end;
    node.ended_as = num_ended_++;
    if (stop_by_) return;
    if (!end.by_job) return fail_alone(index);
    // The rendezvous on this node ended after all nodes had heard of the job's end. A node that
    // hasn't joined yet never will.
    if (index == server_ && !verdict_by_) verdict_by_ = now_ + options_.stop_timeout;
  });
}

void Fleet::gone(int index, int code, const std::string& text, Clock::time_point now) {
  step(now, [&] {
    const State state = nodes_[index].state;
    if (state == State::kEnded || state == State::kLost) return;
    // A transport may end with any status. Only before the agent's hello can it mean that another
    // try doesn't help.
    const bool was_there = state == State::kReady || state == State::kRunning;
    lose(index, was_there ? code_of(ExitCode::kRetryable) : code, text);
  });
}

void Fleet::signalled(int number, bool is_warning, Clock::time_point now) {
  step(now, [&] {
    if (is_warning) return signal_all(number);
    if (echo_.is_echo(number, now_)) {
      warn(SignalEcho::text(number) + "; the next signal kills the workers");
      return;
    }
    constexpr int kEnough = 3;  // at the second signal the agents kill their workers
    const int code = exit_status_for_signal(number);
    const bool is_first = signal_code_ == 0;
    // On the nodes, two equal signals at once would be one for the kernel.
    signal_all(signal_code_ == code ? another_than(number) : number);
    if (is_first) signal_code_ = code;
    if (++num_signals_ >= kEnough) {
      if (cause_ == 0) cause_ = signal_code_;
      close_all();
    } else if (is_first) {
      const bool nothing_runs = count(State::kRunning) == 0;
      if (nothing_runs) {
        warn("got " + signal_name(number) + " before all hosts were reached");
      }
      stop(nothing_runs ? code : 0, "", 0);
    }
  });
}

int Fleet::another_than(int signal_number) const {
  for (const int other : options_.stop_signals) {
    if (other != signal_number) return other;
  }
  return signal_number;
}

void Fleet::signal_all(int number) {
  for (int i = 0; i < num_nodes(); ++i) {
    if (nodes_[i].state == State::kRunning) actions_.signal(i, number);
  }
}

void Fleet::tick(Clock::time_point now) {
  step(now, [&] {
    for (int i = 0; i < num_nodes(); ++i) {
      if (nodes_[i].state != State::kConnecting || nodes_[i].reach_by > now_) continue;
      lose(i, code_of(ExitCode::kRetryable),
           concat("no answer within ", options_.reach_timeout.count() / 1000.0,
                  " s (--ssh-timeout)"));
    }
    if (stop_by_ && *stop_by_ <= now_) {
      for (int i = 0; i < num_nodes(); ++i) {
        if (nodes_[i].state != State::kRunning) continue;
        warn(name(i) + ": its ddprun has not ended in time: left");
      }
      if (cause_ == 0) cause_ = signal_code_ != 0 ? signal_code_ : code_of(ExitCode::kRetryable);
      close_all();
    } else if (verdict_by_ && *verdict_by_ <= now_ && !stop_by_) {
      stop(loss_code_, loss_reason_, options_.stop_signals.front());
    }
  });
}

void Fleet::start_more() {
  int under_way = count(State::kConnecting);
  for (int i = 0; i < num_nodes() && under_way < options_.fanout; ++i) {
    if (nodes_[i].state != State::kWaiting) continue;
    nodes_[i].state = State::kConnecting;
    nodes_[i].reach_by = now_ + options_.reach_timeout;
    ++under_way;
    actions_.start(i);
  }
}

// Returns the serving node, else the first one that isn't over.
int Fleet::server() const {
  if (server_ >= 0) return server_;
  for (int i = 0; i < num_nodes(); ++i) {
    if (!is_over(i)) return i;
  }
  return -1;
}

// Returns the host at which the other nodes reach `server`; nullopt: their hellos are needed first.
std::optional<std::string> Fleet::serve_at(int server) const {
  const Host& named = options_.nodes[server];
  const std::string address = named.address();
  const channel::Hello& hello = nodes_[server].hello;
  if (!named.is_here) return hello.reached_at.empty() ? address : hello.reached_at;
  if (nodes_.size() == 1) return "127.0.0.1";
  if (is_numeric(address) && !is_loopback(address)) return address;
  bool more_to_come = false;
  for (int i = 0; i < num_nodes(); ++i) {
    if (options_.nodes[i].is_here) continue;
    if (!nodes_[i].hello.came_from.empty()) return nodes_[i].hello.came_from;
    more_to_come = more_to_come || nodes_[i].state <= State::kConnecting;
  }
  if (more_to_come) return std::nullopt;
  return is_loopback(address) ? hello.host : address;
}

void Fleet::run_ready() {
  if (endpoint_.empty() && server_ < 0) {
    const int first = server();
    if (first < 0 || nodes_[first].state != State::kReady) return;
    const auto host = serve_at(first);
    if (!host) return;
    server_ = first;
    nodes_[first].state = State::kRunning;
    actions_.run(first, *host, true);
  }
  if (endpoint_.empty()) return;
  const auto endpoint = parse_endpoint(endpoint_, kDefaultRendezvousPort);
  for (int i = 0; i < num_nodes(); ++i) {
    Node& node = nodes_[i];
    if (node.state != State::kReady) continue;
    const bool is_elsewhere = !options_.nodes[i].is_here && !node.hello.reached_at.empty() &&
                              !is_loopback(node.hello.reached_at);
    if (options_.endpoint.empty() && endpoint && is_loopback(endpoint->host) && is_elsewhere) {
      return stop(code_of(ExitCode::kUsage),
                  concat(name(i), " can't reach the rendezvous of ", name(server_),
                         ", which ssh reaches at ", endpoint->host,
                         ": say where the nodes meet (--rdzv-endpoint=HOST:PORT)"),
                  options_.stop_signals.front());
    }
    node.state = State::kRunning;
    actions_.run(i, endpoint_, false);
  }
}

// Whether too few nodes are left for the job, or its serving node is gone.
bool Fleet::is_short() const {
  const auto is_well = [](const Node& node) {
    return node.state == State::kEnded ? node.end.by_job : node.state != State::kLost;
  };
  const auto left = std::count_if(nodes_.begin(), nodes_.end(), is_well);
  return left < options_.min_nodes || (server_ >= 0 && !is_well(nodes_[server_]));
}

void Fleet::lose(int index, int code, const std::string& text) {
  const bool had_job = nodes_[index].state == State::kRunning;
  const std::string loss = name(index) + ": " + text;
  close(index);
  if (stop_by_) {
    if (had_job) warn(loss);
  } else if (!is_short()) {
    warn(loss + "; the job goes on without it");
  } else if (had_job) {
    actions_.say(LogLevel::kError, loss);
    await_verdict(code, loss);
  } else {
    missing_.push_back({name(index), loss});
    if (give_up_by_) return;
    give_up_by_ = now_ + kGatherTime;
    missing_code_ = code;
  }
}

// Names all missing hosts, so that the user can correct them together.
void Fleet::give_up() {
  constexpr std::size_t kMostNames = 20;
  std::string reason = missing_.front().loss;
  if (missing_.size() > 1) {
    reason = concat(missing_.size(),
                    " hosts can't be used: ", first_listed(missing_, kMostNames, &Missing::name),
                    "; ", reason);
  }
  stop(missing_code_, reason, options_.stop_signals.front());
}

// Waits for the rendezvous, which also sees the loss, to decide what happens to the job.
void Fleet::await_verdict(int code, const std::string& reason) {
  if (verdict_by_) return;
  verdict_by_ = now_ + options_.verdict_patience;
  loss_code_ = code;
  loss_reason_ = reason;
}

// A node's ddprun ended before the job did. Its own message about the reason was passed on.
void Fleet::fail_alone(int index) {
  const channel::End& end = nodes_[index].end;
  if (end.was_killed) {
    warn(name(index) + ": its ddprun was ended by " +
         signal_name(end.exit_code - exit_status_for_signal(0)));
  }
  if (!is_short()) {
    warn(concat(name(index), ": ended with ", end.exit_code, "; the job goes on without it"));
  } else if (end.was_killed) {
    await_verdict(code_of(ExitCode::kRetryable), name(index) + ": its ddprun was killed");
  } else {
    stop(end.exit_code != 0 ? end.exit_code : code_of(ExitCode::kRetryable),
         concat(name(index), ": its ddprun ended with ", end.exit_code),
         options_.stop_signals.front());
  }
}

// Closes nodes without a job. Sends the others the signal (0: they have got it), and they end by
// themselves.
void Fleet::stop(int code, const std::string& reason, int signal_number) {
  if (stop_by_) return;
  cause_ = code;
  reason_ = reason;
  for (const Missing& each : missing_) {
    // A single loss is the reason, which is printed at the end.
    if (each.loss != reason) actions_.say(LogLevel::kError, each.loss);
  }
  stop_by_ = now_ + options_.stop_timeout;
  for (int i = 0; i < num_nodes(); ++i) {
    if (nodes_[i].state == State::kRunning) {
      if (signal_number != 0) actions_.signal(i, signal_number);
    } else {
      close(i);
    }
  }
}

void Fleet::close(int index) {
  if (is_over(index)) return;
  if (nodes_[index].state != State::kWaiting) actions_.close(index);
  nodes_[index].state = State::kLost;
}

void Fleet::close_all() {
  for (int i = 0; i < num_nodes(); ++i) close(i);
}

void Fleet::finish() {
  finished_ = true;
  std::vector<const channel::End*> ends(num_ended_);
  for (const Node& node : nodes_) {
    if (node.state == State::kEnded) ends[node.ended_as] = &node.end;
  }
  std::vector<int> by_job;
  for (const channel::End* end : ends) {
    if (end->by_job) by_job.push_back(end->exit_code);
  }
  int code = job_exit_code(by_job);
  if (!by_job.empty() && code == 0) return actions_.finish(code, "", "");
  // A node whose channel was cut ends by a signal, and tells the others so.
  const bool only_cut =
      num_signals_ == 0 && code == exit_status_for_signal(options_.stop_signals.front());
  if (cause_ != 0) return actions_.finish(cause_, reason_, "");
  if (loss_code_ != 0 && (by_job.empty() || only_cut)) {
    return actions_.finish(loss_code_, loss_reason_, "");
  }
  std::string last_words;
  for (const channel::End* end : ends) {
    if (by_job.empty() && code == 0) code = end->exit_code;
    if (last_words.empty() && end->exit_code == code) last_words = end->last_words;
  }
  actions_.finish(code, "", last_words);
}

}  // namespace ddprun::launcher

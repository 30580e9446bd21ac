// SPDX-License-Identifier: Apache-2.0
#include "agent/node_agent.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "common/exit_codes.h"
#include "common/variant.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {

namespace event = membership::agent_event;
namespace action = membership::agent_action;

namespace {

// A cut-off node kills its workers sooner.
constexpr std::chrono::milliseconds kFarewellAfterLoss{3'000};

// `Overloaded{…}` makes one visitor of several lambdas.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

NodeAgent::NodeAgent(boost::asio::io_context& io, Console& console, NodeAgentOptions options,
                     NodeAgentEvents events)
    : io_(io),
      options_(std::move(options)),
      events_(std::move(events)),
      runner_(options_.machine, {[] { return Clock::now(); },
                                 [this](const membership::AgentAction& todo) { perform(todo); },
                                 [this](std::optional<Clock::time_point> at) { wake_at(at); },
                                 [this](const std::string& address, std::uint16_t port) {
                                   return store_.bind(address, port);
                                 }}),
      link_(
          io, options_.connect_to,
          [this](const membership::AgentEvent& link_event) { heard(link_event); },
          [this](const std::string& why) {
            if (!taken_in_ && events_.unreached) events_.unreached(why);
          },
          options_.security),
      store_(io, store_sender()),
      timer_(io),
      talk_(io, options_, options_.workers.output.has_files() ? &console.log_writer() : nullptr,
            say(), events_.tell),
      workers_(io, console, options_, talk_, say(), events_.tell),
      reporter_(io, options_, talk_, workers_, events_, say()),
      rounds_(io, options_, talk_, workers_, reporter_, say(), events_.tell) {
  link_.on_binary([this](std::string_view message) { store_.received(message); });
}

std::function<void(std::string)> NodeAgent::store_sender() {
  if (options_.machine.join.settings.store != membership::StoreMode::kProxy) return nullptr;
  return [this](std::string message) { link_.send_binary(std::move(message)); };
}

Say NodeAgent::say() {
  return [this](membership::AgentEvent event) { handle(std::move(event)); };
}

void NodeAgent::start(const std::string& unfit) {
  rounds_.set_unfit(unfit);
  reporter_.start();
  rounds_.start_warm_helper();
  boost::asio::post(io_, [this, unfit] { handle(event::Start{unfit}); });
}

void NodeAgent::signal(int number, bool is_users) { end(event::Signal{number, is_users}); }

void NodeAgent::abandon(const std::string& reason, int number) {
  end(event::Abandoned{reason, number});
}

void NodeAgent::end(const membership::AgentEvent& event) {
  if (farewell_) return std::exchange(farewell_, nullptr)();
  rounds_.hurry();
  handle(event);
}

void NodeAgent::warn(membership::Preempted warning) { handle(event::Warned{std::move(warning)}); }

AgentMetrics NodeAgent::metrics() {
  AgentMetrics all = reporter_.metrics();
  all.connected = linked_;
  all.warm_helper_bytes = rounds_.warm_helper_bytes();
  if (rounds_.has_parked()) {
    all.num_parked = static_cast<std::size_t>(options_.environment.num_workers);
  }
  return all;
}

void NodeAgent::heard(const membership::AgentEvent& link_event) {
  reached_ = reached_ || variants::holds_alternative<event::LinkUp>(link_event);
  bool is_welcome = false;
  if (variants::holds_alternative<event::LinkDown>(link_event)) {
    linked_ = false;
    store_.unlinked();
  }
  if (const auto* heard = variants::get_if<event::LinkMessage>(&link_event)) {
    const auto& message = heard->envelope.message;
    const auto* refused = variants::get_if<membership::Refused>(&message);
    is_welcome = variants::holds_alternative<membership::Welcome>(message);
    taken_in_ |= is_welcome;
    linked_ |= is_welcome;
    if (refused != nullptr && refused->again) taken_in_ = talk_.round() != 0;
  }
  handle(link_event);
  if (is_welcome) store_.linked();
}

void NodeAgent::perform(const membership::AgentAction& todo) {
  const Overloaded carry_out{
      [this](const action::Connect& connect) { link_.connect(connect.timeout); },
      [this](const action::CloseLink&) { link_.close(); },
      [this](const action::Send& send) { link_.send(send.envelope); },
      [this](const action::SetKeepAlive& keep) {
        link_.set_keep_alive(keep.timeout, keep.interval);
      },
      [this](const action::ServeStore& serve) { store_.serve(serve.round, serve.is_for_loopback); },
      [this](const action::CloseStore& close) {
        // At the end the store stays for other nodes' workers: leave() closes it.
        if (!runner_.machine().exited()) store_.close(close.round);
      },
      [this](const action::Spawn& start) { rounds_.spawn(start.round); },
      [this](const action::Prewarm&) { rounds_.prewarm(); },
      [this](const action::Lease& lease) { workers_.lease(lease.until); },
      [this](const action::RequestStop& request) { rounds_.ask_to_leave(request); },
      [this](const action::StopWorkers& stop) { rounds_.stop_workers(stop); },
      [this](const action::RoundOver& over) {
        if (events_.round_over) events_.round_over(over);
      },
      [this](const action::KeepWorkers&) { rounds_.keep_workers(); },
      [this](const action::GoOn& next) { rounds_.go_on(next.round); },
      [this](const action::Record&) { talk_.ask_for_records(); },
      [this](const action::Inspect& inspect) {
        talk_.ask_for_records();
        reporter_.inspect(inspect.inquiry);
      },
      [this](const action::ReadTail& wanted) { reporter_.read_tail(wanted); },
      [this](const action::Tell& tell) { events_.tell(tell.level, tell.text); },
      [this](const action::Exit& exit) {
        timer_.cancel();
        leave(exit);
      },
  };
  variants::visit(carry_out, todo);
}

void NodeAgent::wake_at(std::optional<Clock::time_point> at) {
  if (!at) {
    timer_.cancel();
    return;
  }
  run_at(timer_, *at, [this] { handle(event::Timer{}); });
}

// Keeps the store for a while: workers of other nodes may be in their grace, and may write a
// checkpoint that needs it.
void NodeAgent::leave(const action::Exit& exit) {
  rounds_.leave();
  if (exit.verdict.exit_code == 0) return events_.exited(exit);
  farewell_ = [this, exit] { events_.exited(exit); };
  auto limit = options_.machine.join.timeouts.shutdown;
  if (exit.verdict.exit_code == static_cast<int>(ExitCode::kRetryable)) {
    limit = std::min(limit, kFarewellAfterLoss);  // connections of a lost node may never end
  }
  store_.when_unused(limit, [this] {
    if (farewell_) std::exchange(farewell_, nullptr)();
  });
}

}  // namespace ddprun::agent

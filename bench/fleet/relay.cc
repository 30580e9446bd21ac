// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/relay.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "common/clock.h"
#include "common/error.h"

namespace ddprun::bench {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorOf = boost::system::error_code;

// Two connections and what goes between them.
class Relay::Pair : public std::enable_shared_from_this<Pair> {
 public:
  Pair(tcp::socket agent, std::shared_ptr<const Way> way)
      : way_(std::move(way)),
        up_(agent.get_executor(), way_->up_held),
        down_(agent.get_executor(), way_->down_held),
        agent_(std::move(agent)),
        rendezvous_(agent_.get_executor()) {}

  void start() {
    rendezvous_.async_connect(way_->target, [self = shared_from_this()](const ErrorOf& error) {
      if (error) return self->close();
      ErrorOf ignored;
      self->agent_.set_option(tcp::no_delay(true), ignored);
      self->rendezvous_.set_option(tcp::no_delay(true), ignored);
      self->read(self->up_, self->agent_, self->rendezvous_);
      self->read(self->down_, self->rendezvous_, self->agent_);
    });
  }

  // Looks whether data that was held back may go on.
  void look_again() {
    up_.timer.cancel();
    down_.timer.cancel();
  }

  void close() {
    ErrorOf ignored;
    agent_.close(ignored);
    rendezvous_.close(ignored);
    look_again();
  }

 private:
  struct Pump {
    Pump(const tcp::socket::executor_type& executor, const bool& is_held)
        : timer(executor), held(is_held) {}
    asio::steady_timer timer;
    const bool& held;  // in *way_
    std::array<char, 4096> buffer{};
  };

  void read(Pump& pump, tcp::socket& from, tcp::socket& to) {
    from.async_read_some(asio::buffer(pump.buffer), [self = shared_from_this(), &pump, &from, &to](
                                                        const ErrorOf& error, std::size_t size) {
      const auto due = Clock::now() + self->way_->delay;
      self->pass(pump, from, to, error ? 0 : size, due);
    });
  }

  // `size` 0: the end of what comes from `from`.
  void pass(Pump& pump, tcp::socket& from, tcp::socket& to, std::size_t size,
            Clock::time_point due) {
    if (!from.is_open()) return;
    if (pump.held || Clock::now() < due) {
      pump.timer.expires_at(pump.held ? Clock::time_point::max() : due);
      pump.timer.async_wait([self = shared_from_this(), &pump, &from, &to, size,
                             due](const ErrorOf&) { self->pass(pump, from, to, size, due); });
      return;
    }
    if (size == 0) return close();
    asio::async_write(
        to, asio::buffer(pump.buffer, size),
        [self = shared_from_this(), &pump, &from, &to](const ErrorOf& error, std::size_t) {
          if (error) return self->close();
          self->read(pump, from, to);
        });
  }

  const std::shared_ptr<const Way> way_;
  Pump up_, down_;
  tcp::socket agent_, rendezvous_;
};

Relay::Relay(asio::io_context& io, const Endpoint& target, std::chrono::microseconds delay)
    : acceptor_(io), way_(std::make_shared<Way>()) {
  try {
    way_->target = tcp::endpoint(asio::ip::make_address(target.host), target.port);
    way_->delay = delay;
    const tcp::endpoint here(asio::ip::address_v4::loopback(), 0);
    acceptor_.open(here.protocol());
    acceptor_.bind(here);
    acceptor_.listen();
  } catch (const boost::system::system_error& error) {
    throw Error(ErrorCode::kSystem, std::string("a relay to the rendezvous: ") + error.what());
  }
  accept_next();
}

Relay::~Relay() {
  for (const auto& weak : pairs_) {
    if (const auto pair = weak.lock()) pair->close();
  }
}

Endpoint Relay::endpoint() const {
  return {acceptor_.local_endpoint().address().to_string(), acceptor_.local_endpoint().port()};
}

void Relay::hold(bool up, bool down) {
  way_->up_held = up;
  way_->down_held = down;
  std::erase_if(pairs_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : pairs_) weak.lock()->look_again();
}

void Relay::accept_next() {
  acceptor_.async_accept([this](const ErrorOf& error, tcp::socket agent) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      const auto pair = std::make_shared<Pair>(std::move(agent), way_);
      pairs_.push_back(pair);
      pair->start();
    }
    accept_next();
  });
}

}  // namespace ddprun::bench

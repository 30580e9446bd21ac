// SPDX-License-Identifier: Apache-2.0
// `ddprun --from-channel`: one node's agent for a launcher elsewhere. Gets its job over standard
// input, runs ddprun with it as a child, and passes on what that says. It ends with the channel,
// and ddprun with it (docs/ssh.md). io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "agent/watched_child.h"
#include "common/environment.h"
#include "launcher/hosts/channel_end.h"

namespace ddprun::launcher {

class ChannelAgent {
 public:
  // `environment`: of this process.
  explicit ChannelAgent(Environment environment);

  // Until ddprun has ended and that was said, or nobody listens any more. Returns the exit status.
  int run();

 private:
  struct Stream {  // of ddprun
    explicit Stream(boost::asio::io_context& io) : pipe(io) {}
    boost::asio::posix::stream_descriptor pipe;
    bool reading = false;
    std::array<char, channel::kMostOutputBytes> buffer;
  };

  void obey(const channel::Message& message);
  void start(const channel::Job& job);
  void start_child(const channel::Job& job);
  void refuse(const std::string& why);
  void take_input(std::string_view bytes);
  void input_has_left(std::size_t num_bytes);
  void read_all();
  void read(Stream& stream);
  void hear_child(const channel::Message& message);
  void on_child_end(int wait_status);
  void await_output();
  void close_streams();
  bool is_behind() const;
  void say_end_when_read();
  void lose_channel(const std::string& fault);

  const Environment environment_;
  boost::asio::io_context io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer patience_;
  ChannelEnd channel_;
  bool channel_lost_ = false;

  std::shared_ptr<agent::WatchedChild> child_;  // null: none yet, or it has ended
  PipeWriter stdin_;
  Stream stdout_;
  Stream stderr_;
  ChannelEnd words_;                             // its own; it leaves the job when this is closed
  std::size_t room_ = channel::kMostInputBytes;  // that was not said yet
  bool input_ended_ = false;
  std::chrono::seconds stop_time_{0};
  bool child_ended_ = false;
  bool end_said_ = false;
  channel::End end_;
};

}  // namespace ddprun::launcher

// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store_server/in_turns.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace ddprun::store {

void do_in_turns(const boost::asio::any_io_executor& io, std::function<bool()> some) {
  boost::asio::post(io, [io, some = std::move(some)]() mutable {
    if (some()) do_in_turns(io, std::move(some));
  });
}

}  // namespace ddprun::store

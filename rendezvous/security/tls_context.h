// SPDX-License-Identifier: Apache-2.0
// What a TlsContext is. For those who make and use one.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <string>

#include "rendezvous/security/tls.h"

namespace ddprun::security {

struct FlaggedContext : boost::asio::ssl::context {
  using context::context;
  std::string flags;  // as TlsFiles has it
};

}  // namespace ddprun::security

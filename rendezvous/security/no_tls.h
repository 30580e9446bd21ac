// SPDX-License-Identifier: Apache-2.0
// Who answers a TLS handshake with something else. Pure.
#pragma once

#include <boost/system/error_code.hpp>

namespace ddprun::security {

// `error` is of a handshake: what came was no TLS record of a version that is spoken here, as of a
// server of another protocol. False also where it isn't TLS's error.
bool is_no_tls(const boost::system::error_code& error);

}  // namespace ddprun::security

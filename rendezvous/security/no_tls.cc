// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/no_tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/ssl/error.hpp>

namespace ddprun::security {

bool is_no_tls(const boost::system::error_code& error) {
  if (error.category() != boost::asio::error::get_ssl_category()) return false;
  switch (ERR_GET_REASON(static_cast<unsigned long>(error.value()))) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_BAD_RECORD_TYPE:
      return true;
    default:
      return false;
  }
}

}  // namespace ddprun::security

// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/certificate_check.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <boost/asio/ip/address.hpp>
#include <boost/system/error_code.hpp>
#include <memory>

#include "common/check.h"
#include "common/log.h"
#include "rendezvous/security/tls.h"
#include "rendezvous/security/tls_context.h"

namespace ddprun::security {

bool expect_host(X509_VERIFY_PARAM* param, const std::string& host) {
  boost::system::error_code not_numeric;
  auto address = boost::asio::ip::make_address(host, not_numeric);
  if (not_numeric) return ::X509_VERIFY_PARAM_set1_host(param, host.c_str(), 0) == 1;
  if (address.is_v6()) {  // "fe80::1%eth0": certificates know no interfaces
    boost::asio::ip::address_v6 plain = address.to_v6();
    plain.scope_id(0);
    address = plain;
  }
  return ::X509_VERIFY_PARAM_set1_ip_asc(param, address.to_string().c_str()) == 1;
}

std::string certificate_trouble(long verdict, const std::string& host, const std::string& flags) {
  switch (verdict) {
    case X509_V_OK:
      return "";
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired: renew it (or this machine's clock is wrong)";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet: is this machine's clock right?";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return concat("its certificate is not for ", host,
                    ": make one that names it, or use a name that it has");
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return concat("its certificate is of an authority that ", flags, "-ca does not have");
    default:
      return concat("its certificate is refused: ", ::X509_verify_cert_error_string(verdict));
  }
}

std::string own_certificate_trouble(const TlsContext& client, const std::string& host) {
  SSL_CTX* from = client->native_handle();
  STACK_OF(X509)* chain = nullptr;
  ::SSL_CTX_get0_chain_certs(from, &chain);
  const std::unique_ptr<X509_STORE_CTX, decltype(&::X509_STORE_CTX_free)> check(
      ::X509_STORE_CTX_new(), &::X509_STORE_CTX_free);
  X509* own = ::SSL_CTX_get0_certificate(from);
  DDPRUN_CHECK(own != nullptr);
  const bool is_set_up =
      check &&
      ::X509_STORE_CTX_init(check.get(), ::SSL_CTX_get_cert_store(from), own, chain) == 1 &&
      ::X509_STORE_CTX_set_default(check.get(), "ssl_server") == 1 &&
      expect_host(::X509_STORE_CTX_get0_param(check.get()), host);
  if (!is_set_up) return certificate_trouble(X509_V_ERR_INVALID_CALL, host, client->flags);
  if (::X509_verify_cert(check.get()) == 1) return "";
  return certificate_trouble(::X509_STORE_CTX_get_error(check.get()), host, client->flags);
}

}  // namespace ddprun::security

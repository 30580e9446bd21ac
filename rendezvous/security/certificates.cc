// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/security/certificates.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <boost/asio/ip/address.hpp>
#include <memory>

#include "common/text.h"
#include "common/throw_error.h"
#include "rendezvous/security/tls_context.h"

namespace ddprun::security {
namespace {

using Cert = std::unique_ptr<X509, Freer<::X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<::X509_EXTENSION_free>>;
using Number = std::unique_ptr<BIGNUM, Freer<::BN_free>>;

constexpr std::chrono::seconds kClockSkew{3600};  // allowed for clocks of machines that check it
constexpr int kSerialBits = 127;
constexpr std::size_t kMaxCommonNameBytes = 64;

void need(bool done, const char* what) {
  if (done) return;
  const char* reason = ::ERR_reason_error_string(::ERR_peek_last_error());
  ::ERR_clear_error();
  throw_error(ErrorCode::kSystem, what, ": ", reason != nullptr ? reason : "failed");
}

std::string pem_text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

Certificate to_pem(X509* cert, EVP_PKEY* key) {
  Certificate result;
  const Bio of_cert(::BIO_new(::BIO_s_mem())), of_key(::BIO_new(::BIO_s_secmem()));
  need(::PEM_write_bio_X509(of_cert.get(), cert) == 1, "writing a certificate");
  need(::PEM_write_bio_PKCS8PrivateKey(of_key.get(), key, nullptr, nullptr, 0, nullptr, nullptr) ==
           1,
       "writing a key");
  return {pem_text(of_cert.get()), pem_text(of_key.get())};
}

void add_extension(X509* cert, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context{};
  ::X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  const Extension extension(::X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  if (!extension) ::ERR_clear_error();
  if (!extension) throw_invalid("no certificate can have ", value);
  need(::X509_add_ext(cert, extension.get(), -1) == 1, "an extension");
}

// Makes a certificate without extensions and signature.
Cert begin_certificate(EVP_PKEY* key, const std::string& name, X509* issuer, Days valid) {
  Cert cert(::X509_new());
  need(cert != nullptr && ::X509_set_version(cert.get(), X509_VERSION_3) == 1, "a certificate");
  const Number serial(::BN_new());
  need(::BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
           ::BN_to_ASN1_INTEGER(serial.get(), ::X509_get_serialNumber(cert.get())) != nullptr,
       "a serial number");
  need(::X509_gmtime_adj(::X509_getm_notBefore(cert.get()), -kClockSkew.count()) != nullptr &&
           ::X509_gmtime_adj(::X509_getm_notAfter(cert.get()),
                             std::chrono::seconds(valid).count()) != nullptr,
       "its validity");
  // X.520 has no room for more. Only the alternative names are checked.
  const std::string common = name.substr(0, kMaxCommonNameBytes);
  X509_NAME* subject = ::X509_get_subject_name(cert.get());
  need(::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(common.c_str()), -1, -1,
                                    0) == 1,
       "its name");
  need(
      ::X509_set_issuer_name(cert.get(), issuer ? ::X509_get_subject_name(issuer) : subject) == 1 &&
          ::X509_set_pubkey(cert.get(), key) == 1,
      "its issuer");
  return cert;
}

std::string alternative_names(const std::vector<std::string>& hosts) {
  std::string names;
  for (const std::string& host : hosts) {
    boost::system::error_code not_numeric;
    boost::asio::ip::make_address(host, not_numeric);
    if (host.empty() || host.find_first_of(", \t\n:=") != std::string::npos) {
      if (not_numeric) throw_invalid("\"", host, "\" is no host name or address");
    }
    names += concat(names.empty() ? "" : ",", not_numeric ? "DNS:" : "IP:", host);
  }
  return names;
}

}  // namespace

Certificate make_authority(const std::string& name, Days valid) {
  const Key key(::EVP_EC_gen("P-256"));
  need(key != nullptr, "making a key");
  const Cert cert = begin_certificate(key.get(), name, nullptr, valid);
  add_extension(cert.get(), cert.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(cert.get(), cert.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(cert.get(), cert.get(), NID_subject_key_identifier, "hash");
  need(::X509_sign(cert.get(), key.get(), ::EVP_sha256()) > 0, "signing");
  return to_pem(cert.get(), key.get());
}

Certificate issue(const Certificate& authority, const std::string& name,
                  const std::vector<std::string>& hosts, Days valid) {
  const Bio cert_text(
      ::BIO_new_mem_buf(authority.cert.data(), static_cast<int>(authority.cert.size())));
  const Bio key_text(
      ::BIO_new_mem_buf(authority.key.data(), static_cast<int>(authority.key.size())));
  const Cert issuer(::PEM_read_bio_X509(cert_text.get(), nullptr, nullptr, nullptr));
  const Key signer(::PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  need(issuer && signer, "reading the authority");
  const std::string names = alternative_names(hosts);
  const Key key(::EVP_EC_gen("P-256"));
  need(key != nullptr, "making a key");
  const Cert cert = begin_certificate(key.get(), name, issuer.get(), valid);
  add_extension(cert.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE");
  add_extension(cert.get(), issuer.get(), NID_key_usage, "critical,digitalSignature");
  add_extension(cert.get(), issuer.get(), NID_ext_key_usage,
                hosts.empty() ? "clientAuth" : "serverAuth,clientAuth");
  add_extension(cert.get(), issuer.get(), NID_subject_key_identifier, "hash");
  add_extension(cert.get(), issuer.get(), NID_authority_key_identifier, "keyid");
  if (!hosts.empty()) {
    add_extension(cert.get(), issuer.get(), NID_subject_alt_name, names);
  }
  need(::X509_sign(cert.get(), signer.get(), ::EVP_sha256()) > 0, "signing");
  return to_pem(cert.get(), key.get());
}

}  // namespace ddprun::security

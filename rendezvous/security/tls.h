// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 for the rendezvous' port, with certificates and keys from files.
#pragma once

#include <memory>
#include <string>

namespace ddprun::security {

struct FlaggedContext;                               // tls_context.h
using TlsContext = std::shared_ptr<FlaggedContext>;  // shared by all users

// Files of this user or of root, which no other user can change.
struct TlsFiles {
  std::string cert;            // PEM: this side's certificate, then the intermediate ones
  std::string key;             // PEM; other users can't read it, as a Secret's file
  std::string ca;              // PEM: the authorities of the other side's certificate
  bool verify_client = false;  // the server requires a client's certificate
  // Prefix of the flags for these files: "--tls" for --tls-cert, --tls-key, --tls-ca. Messages
  // about a file, or about a peer that can't be trusted, have these flags.
  std::string flags = "--tls";

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty() || verify_client; }
  bool operator==(const TlsFiles&) const = default;
};

// Makes OpenSSL wipe the memory that it frees. Then a core file has no trace of keys: their numbers
// are in secure memory. Call it before any other function of OpenSSL; later it has no effect.
void wipe_what_is_freed();

// Each throws Error(kInvalidArgument), one line with flag and file. It means that a file is
// missing, can't be read or isn't regular, that others can change it, or that a key isn't the
// certificate's.
TlsContext make_server_context(const TlsFiles& files);
TlsContext make_client_context(const TlsFiles& files);

// Makes a server's context with the certificate and key of `client`, for a program that is both. So
// the files are read only once: reading them is most of the TLS cost of a short job. Returns null
// if `client` has no certificate.
TlsContext make_server_context(const TlsContext& client);

// Checks `client`'s own certificate, which it must have, as another client would check it on the
// server `host` (a name or an address). Returns the fault; empty: none.
std::string own_certificate_trouble(const TlsContext& client, const std::string& host);

}  // namespace ddprun::security

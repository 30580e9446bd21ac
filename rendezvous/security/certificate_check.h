// SPDX-License-Identifier: Apache-2.0
// Is a certificate of an authority that is known, valid now, and for this host? For the .cc files
// of this folder.
#pragma once

#include <openssl/x509_vfy.h>

#include <string>

namespace ddprun::security {

// The certificate is to be for `host`, a name or an address. False: OpenSSL takes no such name.
bool expect_host(X509_VERIFY_PARAM* param, const std::string& host);

// What OpenSSL's verdict X509_V_… says of a certificate that was to be for `host`, and what to do;
// `flags` as TlsFiles has it. Empty: nothing is wrong.
std::string certificate_trouble(long verdict, const std::string& host, const std::string& flags);

}  // namespace ddprun::security

/* ref_route -- reference for the parts of routed layers that are computed in double in every
 * compute type. The templates are in ref_route.h. */
#include "ops/ref/ref_impl.h"

void ref_standardise(int64_t width, double *g)
{
    double mean = 0, squares = 0;
    for (int64_t c = 0; c < width; c++)
        mean += g[c] / (double)width;
    for (int64_t c = 0; c < width; c++)
        squares += (g[c] - mean) * (g[c] - mean) / (double)width;
    for (int64_t c = 0; c < width; c++)
        g[c] = (g[c] - mean) / sqrt(squares + OPS_STANDARDISE_EPS);
}

/* H = - sum of p log(p + eps), so dH/dp = e = -log(p + eps) - p / (p + eps), and through the
 * softmax dH/dz = p (e - sum of p e). */
double ref_entropy(int64_t width, const double *z, double *slope)
{
    double max = z[0], sum = 0, mean = 0, entropy = 0;
    for (int64_t c = 0; c < width; c++)
        max = fmax(max, z[c]);
    for (int64_t c = 0; c < width; c++)
        sum += exp(z[c] - max);
    for (int64_t c = 0; c < width; c++) {
        double p = exp(z[c] - max) / sum, q = p + OPS_MAS_EPS;
        entropy -= p * log(q);
        slope[c] = -log(q) - p / q;
        mean += p * slope[c];
    }
    for (int64_t c = 0; c < width; c++)
        slope[c] = exp(z[c] - max) / sum * (slope[c] - mean);
    return entropy;
}
